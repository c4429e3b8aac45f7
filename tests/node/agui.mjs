// A chat front end on @ag-ui/client, whose verifier checks every event: does what the steps say, and prints what came of each as a line of JSON.
//
//   node agui.mjs TOOLS URL TOKEN STEPS
//
// A step: {runId, text?, answer?, leaveAfter?, fresh?, props?}. `answer` answers every open interrupt, `leaveAfter` goes away after an event of that type,
// `fresh` is a front end that has just been opened.
import { createRequire } from "node:module";

const [, , tools, url, token, steps] = process.argv;
const { HttpAgent } = createRequire(`${tools}/package.json`)("@ag-ui/client");
const opened = () => new HttpAgent({ url, threadId: "t", headers: { Authorization: `Bearer ${token}` } });
let agent = opened();

for (const step of JSON.parse(steps)) {
    if (step.fresh) agent = opened();
    const events = [];
    let error = "";
    if (step.text) agent.addMessage({ id: `${step.runId}-said`, role: "user", content: step.text });
    const resume = step.answer && agent.pendingInterrupts.map((one) => ({ interruptId: one.id, status: "resolved", payload: step.answer }));
    let leave;
    const left = new Promise((resolve) => (leave = resolve));
    const onEvent = ({ event }) => {
        events.push(event);
        if (event.type === step.leaveAfter) setTimeout(() => leave(agent.abortRun()));
    };
    try {
        const running = agent.runAgent({ runId: step.runId, resume, forwardedProps: step.props ?? {} }, { onEvent });
        await Promise.race([running, left]); // a front end that is closed waits for nothing
    } catch (failure) {
        error = String(failure);
    }
    console.log(JSON.stringify({ events, error, messages: agent.messages, interrupts: agent.pendingInterrupts }));
}
process.exit(0);
