// One pair of a blind check, and the keys that judge it.
//
// What is pressed carries the id of the pair on the screen and the name of who judges, and nothing
// more can be pressed until the server has drawn the pair after it. A key that comes sooner after a
// pair than anybody reads was meant for the one before, and is dropped.

const ACTIONS = { 1: "left", 2: "right", 0: "neither", u: "undo", U: "undo" };
const UNREAD_MS = 250;
const SILENT_MS = 8000;
const views = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  if (!views.has(parentElement)) views.set(parentElement, view(parentElement));
  const own = views.get(parentElement);
  own.take(data, (entry) => setStateValue("verdict", entry));
  return own.stop;
}

function view(root) {
  const at = (name) => root.querySelector(`[data-at="${name}"]`);
  const client = Math.random().toString(36).slice(2);
  let data = { pair: null, last: null };
  let send = () => {};
  let count = 0;
  let waiting = false;
  let since = 0;
  let timer = 0;

  function take(given, sender) {
    if (given.pair !== data.pair || waiting) since = performance.now();
    const other = given.pair !== data.pair || given.html !== data.html;
    data = given;
    send = sender;
    waiting = false;
    clearTimeout(timer);
    if (other || !at("pane").hasChildNodes()) {
      if (data.pair) at("pane").innerHTML = data.html; // escaped where it was made
      else at("pane").textContent = `All ${data.total} pairs are judged.`;
    }
    draw();
  }

  function draw() {
    const who = data.who ? `${data.who} · ` : "";
    at("progress").textContent = `${who}${data.done} of ${data.total}`;
    at("bar").style.width = `${(100 * data.done) / data.total}%`;
    at("pane").style.opacity = waiting ? 0.35 : 1;
    at("pane").style.minHeight = data.pair ? "" : "0";
    for (const button of root.querySelectorAll("button")) {
      const judges = button.dataset.action !== "undo";
      button.disabled = waiting || (judges ? !data.pair : !data.last);
    }
  }

  function press(action) {
    const pair = action === "undo" ? data.last : data.pair;
    if (waiting || !pair || performance.now() - since < UNREAD_MS) return;
    waiting = true;
    // Without an answer, as when the connection broke, the same pair can be judged again.
    timer = setTimeout(() => {
      waiting = false;
      draw();
    }, SILENT_MS);
    send({ run: data.run, who: data.who, pair, action, number: `${client} ${++count}` });
    draw();
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

  document.addEventListener("keydown", onKey, true);
  at("root").addEventListener("click", onClick);

  function stop() {
    document.removeEventListener("keydown", onKey, true);
    clearTimeout(timer);
    views.delete(root);
  }

  return { take, stop };
}
