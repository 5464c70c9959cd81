// The pair on the screen, and the keys that decide on it.
//
// A decision is made here, on the pair that is shown, and carries its id: what the server is drawing
// meanwhile cannot change that. The next pairs were sent along, so the next one is shown at once.
// What was decided is sent until the server says that it is on disk. While no pair is shown, keys
// wait in a queue that is seen, and fall on the pairs that come, in order.

const DECISIONS = { k: "keep", f: "flip", t: "tie", d: "drop" };
const RESEND_MS = 8000;
const readers = new WeakMap();

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  if (!readers.has(parentElement)) readers.set(parentElement, reader(parentElement));
  const own = readers.get(parentElement);
  own.take(data, (log) => setStateValue("log", log));
  return own.stop;
}

// Marks the words of a search where they stand, without a change to the texts.
function markWords(pane, words) {
  if (!CSS.highlights) return;
  CSS.highlights.delete("plc-found");
  if (!words) return;
  const wanted = new RegExp(words.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"), "giu");
  const ranges = [];
  for (const text of pane.querySelectorAll(".plc-text")) {
    const nodes = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
    const starts = []; // [place in the whole text, node], as marks cut a text into nodes
    let whole = "";
    while (nodes.nextNode()) {
      starts.push([whole.length, nodes.currentNode]);
      whole += nodes.currentNode.data;
    }
    const find = (place) => {
      const [start, node] = starts.findLast(([start]) => start <= place);
      return [node, place - start];
    };
    for (const found of whole.matchAll(wanted)) {
      const [last, end] = find(found.index + found[0].length - 1);
      const range = document.createRange();
      range.setStart(...find(found.index));
      range.setEnd(last, end + 1);
      ranges.push(range);
    }
  }
  CSS.highlights.set("plc-found", new Highlight(...ranges));
}

function reader(root) {
  const at = (name) => root.querySelector(`[data-at="${name}"]`);
  const client = Math.random().toString(36).slice(2);
  let send = () => {};
  let seq = 0;
  let sent = 0; // the last entry that was sent and not yet acknowledged
  let timer = 0;
  let waitsFor = 0; // the entry whose outcome only the server knows: an undo
  let view = { run: null, ids: [], first: 0, total: 0, pairs: {}, decided: {}, progress: [0, 0] };
  let current = null;
  let shown = null; // what stands in the pane
  let marked = null; // the words that are marked in the pane
  let pending = []; // not yet on disk, as far as is known here
  let queue = []; // keys pressed while no pair was shown
  let dropped = 0; // keys of the queue that were given up, as another list came

  function take(data, sender) {
    send = sender;
    const undone = waitsFor && data.acked.client === client && data.acked.seq >= waitsFor;
    if (data.acked.client === client) {
      pending = pending.filter((entry) => entry.seq > data.acked.seq);
      if (data.acked.seq >= sent) sent = 0;
      if (data.acked.seq >= waitsFor) waitsFor = 0;
    }
    const known = data.run === view.run ? view.pairs : {};
    const near = new Set(data.ids);
    if (data.run !== view.run) drop();
    view = { ...data, pairs: { ...data.pairs } };
    for (const id of Object.keys(known)) {
      if (near.has(id) && !(id in view.pairs)) view.pairs[id] = known[id];
    }
    if (!pending.length) {
      // Moved from elsewhere, as by a click in the list: what waits was not meant for that pair.
      if (current !== null && current !== data.current && !undone) drop();
      current = data.current;
    }
    drain();
    draw();
    flush();
  }

  function decidedOn(id) {
    for (let i = pending.length - 1; i >= 0; i--) {
      if (pending[i].pair === id && pending[i].run === view.run) return pending[i].decision;
    }
    return view.decided[id] ?? null;
  }

  const readable = () => current !== null && current in view.pairs && !waitsFor;
  const place = (id) => {
    const here = view.ids.indexOf(id);
    return here < 0 ? null : view.first + here;
  };

  // The pair so many places on: its id, null past the ends of the list, undefined where not sent yet.
  function neighbour(by) {
    const here = place(current);
    if (here === null) return null;
    const there = here + by;
    return there < 0 || there >= view.total ? null : view.ids[there - view.first];
  }

  // Whether the action was taken; one that cannot be yet stays in the queue.
  function perform(action) {
    if (action === "undo") {
      add({ kind: "undo" });
      waitsFor = seq;
      return true;
    }
    const by = action === "back" ? -1 : 1;
    const next = neighbour(by);
    if (next === undefined) return false;
    if (action === "back" || action === "on") {
      if (next !== null) {
        add({ kind: "go", to: next });
        current = next;
      }
      return true;
    }
    const again = decidedOn(current) === action;
    const to = again || next === null ? current : next;
    add({ kind: "decide", pair: current, decision: again ? null : action, to });
    current = to;
    return true;
  }

  function add(entry) {
    pending.push({ ...entry, seq: ++seq, run: view.run });
  }

  function drop() {
    dropped += queue.length;
    queue = [];
  }

  function press(action) {
    dropped = 0;
    queue.push(action);
    drain();
    draw();
    flush();
  }

  function drain() {
    while (queue.length && readable() && perform(queue[0])) queue.shift();
    if (queue.length && current === null && !pending.length) drop(); // no pair will come
  }

  function flush() {
    if (!pending.length || sent) return;
    sent = pending[pending.length - 1].seq;
    send({ client, entries: pending });
    clearTimeout(timer);
    timer = setTimeout(() => {
      sent = 0;
      flush();
    }, RESEND_MS);
  }

  function draw() {
    const isThere = readable();
    if (shown !== (isThere ? current : null) || !isThere) {
      shown = isThere ? current : null;
      const pane = at("pane");
      if (isThere) pane.innerHTML = view.pairs[current]; // escaped where it was made
      else pane.textContent = view.current === null ? view.nothing : "Reading the pair …";
      marked = null;
    }
    if (marked !== view.words) markWords(at("pane"), view.words);
    marked = view.words;
    const decided = isThere ? decidedOn(current) : null;
    for (const button of root.querySelectorAll("button")) {
      const action = button.dataset.action;
      if (action in { keep: 1, flip: 1, tie: 1, drop: 1 }) {
        button.setAttribute("aria-pressed", String(decided === action));
      }
      const by = { back: -1, on: 1 }[action];
      button.disabled = view.current === null || (by !== undefined && isThere && neighbour(by) === null);
      if (action === "undo") button.disabled = !(view.undoable || pending.length);
    }
    const here = current === null ? null : place(current);
    const where =
      view.current === null
        ? "no pair to decide on"
        : here === null
          ? "not in this list"
          : `${(here + 1).toLocaleString("en")} of ${view.total.toLocaleString("en")}`;
    at("place").textContent = where;
    let [done, all] = view.progress;
    for (const id of new Set(pending.map((entry) => entry.pair).filter(Boolean))) {
      done += Boolean(decidedOn(id)) - Boolean(view.decided[id]);
    }
    at("progress").textContent = `${done.toLocaleString("en")} of ${all.toLocaleString("en")} decided`;
    at("bar").style.width = all ? `${(100 * done) / all}%` : "0";
    const keys = queue.length === 1 ? "1 key waits" : `${queue.length} keys wait`;
    at("saving").textContent = queue.length
      ? `${keys} for the pairs to come; Esc drops them`
      : dropped
        ? `Keys that waited and were not applied: ${dropped}`
        : pending.length
          ? "saving …"
          : "";
    // What the server drew of another pair, as its charts, fades until it has followed.
    document.documentElement.toggleAttribute("data-plc-ahead", current !== view.current);
  }

  function onKey(event) {
    const from = event.composedPath()[0];
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (from instanceof Element && from.closest("input, textarea, select, [contenteditable=true]")) {
      return;
    }
    const action =
      DECISIONS[event.key.toLowerCase()] ??
      { ArrowLeft: "back", ArrowRight: "on", u: "undo", U: "undo" }[event.key];
    if (event.key === "Escape" && queue.length) drop();
    else if (!action || (view.current === null && action !== "undo")) return;
    else if (action === "undo" && !(view.undoable || pending.length)) return;
    else if (event.repeat && action !== "back" && action !== "on") return;
    else {
      event.preventDefault();
      event.stopPropagation();
      press(action);
      return;
    }
    draw();
  }

  function onClick(event) {
    const button = event.target.closest("button[data-action]");
    if (button) press(button.dataset.action);
  }

  // Before a click leads to another page, what is not sent yet is sent.
  function onPointer() {
    if (pending.length && pending[pending.length - 1].seq > sent) {
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
    document.documentElement.removeAttribute("data-plc-ahead");
    clearTimeout(timer);
    readers.delete(root);
  }

  return { take, stop };
}
