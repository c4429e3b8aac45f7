"use strict";
// What the pages do by themselves: sign in by the address, fetch blocks of a long run as they are scrolled to, keys, and looking again.

const token = /^#token=([\w.~-]+)$/.exec(location.hash);
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("sign-in");
  if (form) {
    form.elements.token.value = token[1];
    form.submit();
  }
}

const fetched = async (path) => {
  const answer = await fetch(path, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.text();
};

// Blocks: one that comes near is fetched, one that is far away leaves its height behind.
const turns = document.getElementById("turns");
if (turns) {
  const TURN = 88, FAR = 6;
  const heights = new Map();
  const last = () => turns.lastElementChild;
  const blank = (block) => { block.style.height = `${heights.get(block.id) ?? TURN * Number(block.dataset.turns || 1)}px`; };
  const fill = async (block) => {
    if ("here" in block.dataset || "busy" in block.dataset) return;
    block.dataset.busy = "";
    try {
      const holder = document.createElement("template");
      holder.innerHTML = await fetched(turns.dataset.block + block.dataset.number + turns.dataset.query);
      const made = holder.content.firstElementChild;
      near.unobserve(block);
      block.replaceWith(made);
      near.observe(made);
      htmx.process(made);
    } catch (problem) {
      delete block.dataset.busy;
      console.warn(problem);
    }
  };
  const empty = (block) => {
    if (!("here" in block.dataset) || block === last() || block.contains(document.activeElement)) return;
    heights.set(block.id, block.offsetHeight);
    block.dataset.turns = block.querySelectorAll("[data-turn]").length;
    delete block.dataset.here;
    block.replaceChildren();
    blank(block);
  };
  const near = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) fill(one.target);
  }, { rootMargin: "100% 0px" });
  const far = new IntersectionObserver((seen) => {
    for (const one of seen) if (!one.isIntersecting) empty(one.target);
  }, { rootMargin: `${FAR * 100}% 0px` });
  const watch = (block) => { if (!("here" in block.dataset)) blank(block); near.observe(block); far.observe(block); };
  for (const block of turns.children) watch(block);
  new MutationObserver((changes) => {
    for (const change of changes) for (const node of change.addedNodes) if (node.nodeType === 1) watch(node);
  }).observe(turns, { childList: true });
  const at = Number(turns.dataset.at || 0);
  if (at) {
    const here = [...turns.querySelectorAll("[data-turn]")].filter((turn) => Number(turn.dataset.seq) <= at).pop();
    if (here) { here.classList.add("at"); here.scrollIntoView({ block: "center" }); }
  }
}

// News that a page has already, after a connection that broke, take the place of what is there.
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  for (const made of [...(event.detail.fragment?.children ?? [])]) {
    const there = made.id ? document.getElementById(made.id) : null;
    if (!there || there === event.detail.target) continue;
    if (made.classList.contains("block") && there.querySelector("ol")) made.remove();
    else there.replaceWith(made);
  }
});

// Looking again: a list every two seconds while somebody looks at it; the line of time at most once a second while a run moves.
const busy = (part) => part.contains(document.activeElement) || part.querySelector("details[open]") !== null
  || [...part.querySelectorAll("textarea,input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
const again = (id) => { const part = document.getElementById(id); if (part && window.htmx && !busy(part)) htmx.trigger(part, "again"); };
if (document.querySelector("[data-again]")) setInterval(() => { if (!document.hidden) for (const part of document.querySelectorAll("[data-again]")) again(part.id); }, 2000);
let drawing = 0;
document.addEventListener("htmx:sseMessage", () => {
  if (!drawing) drawing = setTimeout(() => { drawing = 0; again("time"); }, 1000);
});

// Views that this browser keeps: a name and the address of a list.
const saved = document.getElementById("saved");
if (saved) {
  const KEY = "detent.views";
  const kept = () => { try { return JSON.parse(localStorage.getItem(KEY) || "[]").filter((one) => String(one.at).startsWith("?") || one.at === ""); } catch { return []; } };
  const keep = (views) => { localStorage.setItem(KEY, JSON.stringify(views.slice(-20))); show(); };
  const show = () => {
    saved.querySelector("nav").replaceChildren(...kept().map((one) => {
      const holder = document.createElement("span"), link = document.createElement("a"), gone = document.createElement("button");
      link.textContent = one.name;
      link.href = `/${one.at}`;
      if (one.at === location.search) link.setAttribute("aria-current", "true");
      gone.textContent = "×";
      gone.className = "plain";
      gone.setAttribute("aria-label", `Forget the view ${one.name}`);
      gone.onclick = () => keep(kept().filter((other) => other.name !== one.name));
      holder.append(link, " ", gone);
      return holder;
    }));
  };
  saved.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    const name = event.target.elements.view.value.trim();
    if (name) keep([...kept().filter((one) => one.name !== name), { name, at: location.search }]);
    event.target.reset();
  };
  saved.hidden = false;
  show();
}

// Keys.
const items = (kind) => [...document.querySelectorAll(kind)].filter((one) => one.offsetParent !== null);
const step = (kind, by) => {
  const all = items(kind);
  if (!all.length) return;
  const now = all.findIndex((one) => one.contains(document.activeElement) || one.classList.contains("at"));
  const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
  for (const one of document.querySelectorAll(".at")) one.classList.remove("at");
  next.classList.add("at");
  const link = next.matches("a,button,summary") ? next : next.querySelector("a,button,summary");
  if (link) link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input,textarea,select,[contenteditable]")) { if (event.key === "Escape") event.target.blur(); return; }
  const help = document.getElementById("help");
  if (help && help.open) return;
  switch (event.key) {
    case "j": step("[data-item]", 1); break;
    case "k": step("[data-item]", -1); break;
    case "]": step("[data-turn]", 1); break;
    case "[": step("[data-turn]", -1); break;
    case "/": { const find = document.querySelector("input[type=search]"); if (!find) return; find.focus(); find.select(); break; }
    case "?": if (help) help.showModal(); break;
    default: return;
  }
  event.preventDefault();
});
