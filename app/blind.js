// The pairs of a blind check, and the keys that judge them.
//
// A verdict is given here, on the pair that is shown, and carries its id and the name of who judges.
// The next pairs were sent along, so the next one is shown at once; what was pressed is sent until
// the server says that it is on disk. A key that comes sooner after a pair than anybody reads was
// meant for the one before: it is not counted, which is said.

const ACTIONS = { 1: "left", 2: "right", 0: "neither", u: "undo", U: "undo" };
const UNREAD_MS = 250;
const RESEND_MS = 8000;
const views = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  if (!views.has(parentElement)) views.set(parentElement, view(parentElement));
  const own = views.get(parentElement);
  own.take(data, (log) => setStateValue("log", log));
  return own.stop;
}

function view(root) {
  const at = (name) => root.querySelector(`[data-at="${name}"]`);
  const client = Math.random().toString(36).slice(2);
  let data = { run: null, who: "", order: [], judged: [], pairs: {} };
  let send = () => {};
  let pending = []; // not yet on disk, as far as is known here
  let seq = 0;
  let sent = 0; // the last entry that was sent and not yet acknowledged
  let shown; // the id of the pair in the pane, null where none is left
  let since = 0;
  let timer = 0;
  let note = "";

  function take(given, sender) {
    send = sender;
    if (given.acked.client === client) {
      pending = pending.filter((entry) => entry.seq > given.acked.seq);
      if (given.acked.seq >= sent) sent = 0;
    }
    const known = given.run === data.run ? data.pairs : {};
    data = { ...given, pairs: { ...known, ...given.pairs } };
    draw();
    flush();
  }

  // The pairs that this person has judged, in that order, with what is not on disk yet.
  function judged() {
    const ids = [...data.judged];
    for (const entry of pending) {
      if (entry.run !== data.run || entry.who !== data.who) continue;
      if (ids.includes(entry.pair)) ids.splice(ids.lastIndexOf(entry.pair), 1);
      if (entry.action !== "undo") ids.push(entry.pair);
    }
    return ids;
  }

  function next() {
    const done = new Set(judged());
    return data.order.find((id) => !done.has(id)) ?? null;
  }

  function draw() {
    const done = judged();
    const pair = next();
    const there = pair === null || pair in data.pairs ? pair : undefined;
    if (there !== shown || there === undefined) {
      shown = there;
      since = performance.now();
      if (shown) at("pane").innerHTML = data.pairs[shown]; // escaped where it was made
      else if (shown === null) at("pane").textContent = `All ${data.order.length} pairs are judged.`;
      else at("pane").textContent = "Reading the pair …";
    }
    const who = data.who ? `${data.who} · ` : "";
    at("progress").textContent = `${who}${done.length} of ${data.order.length}`;
    at("bar").style.width = `${(100 * done.length) / Math.max(data.order.length, 1)}%`;
    at("saving").textContent = note || (pending.length ? "saving …" : "");
    at("pane").style.minHeight = shown === null ? "0" : "";
    for (const button of root.querySelectorAll("button")) {
      button.disabled = button.dataset.action === "undo" ? !done.length : !shown;
    }
  }

  function press(action) {
    const undone = judged().at(-1);
    const pair = action === "undo" ? undone : shown;
    if (!pair) return;
    note = "";
    if (action !== "undo" && performance.now() - since < UNREAD_MS) {
      note = "That key came before the pair could be read, and was not counted.";
    } else {
      pending.push({ seq: ++seq, run: data.run, who: data.who, pair, action });
    }
    draw();
    flush();
  }

  function flush() {
    if (!pending.length || sent) return;
    sent = pending.at(-1).seq;
    send({ client, entries: pending });
    clearTimeout(timer);
    timer = setTimeout(() => {
      sent = 0;
      flush();
    }, RESEND_MS);
  }

  function onKey(event) {
    const from = event.composedPath()[0];
    if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (from instanceof Element && from.closest("input, textarea, select, [contenteditable=true]")) {
      return;
    }
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    press(action);
  }

  function onClick(event) {
    const button = event.target.closest("button[data-action]");
    if (button) press(button.dataset.action);
  }

  // Before a click leads to another page, what is not sent yet is sent.
  function onPointer() {
    if (pending.length && pending.at(-1).seq > sent) {
      sent = 0;
      flush();
    }
  }

  document.addEventListener("keydown", onKey, true);
  document.addEventListener("pointerdown", onPointer, true);
  at("root").addEventListener("click", onClick);

  function stop() {
    document.removeEventListener("keydown", onKey, true);
    document.removeEventListener("pointerdown", onPointer, true);
    clearTimeout(timer);
    views.delete(root);
  }

  return { take, stop };
}
