// Lets the conformance suite load in Node.js 20: it imports `globSync`, which came with 22 and which no client scenario calls.
import { register } from "node:module";

const fs = `export * from "node:fs"; export { default } from "node:fs"; export const globSync = () => { throw new Error("needs Node.js 22"); };`;
const hooks = `
export const resolve = (name, context, next) =>
    name === "fs" && context.parentURL?.includes("/conformance/")
        ? { url: "data:text/javascript,${encodeURIComponent(fs)}", shortCircuit: true }
        : next(name, context);
`;
if (!("globSync" in (await import("node:fs")))) register(`data:text/javascript,${encodeURIComponent(hooks)}`);
