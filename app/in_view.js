// Tells the server whether the part of the page around this component is in view.

const SETTLE_MS = 250; // while a page is drawn or scrolled, parts come into view and go again
// Whatever is sent goes with the values of all widgets and the address. Where the server is about to
// change these, as it does after a click, old ones would be taken for a person's: so it is sent
// while nothing goes on.
const QUIET_MS = 1000;
const watched = new WeakMap();

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  if (!watched.has(parentElement)) watched.set(parentElement, watch(parentElement));
  const own = watched.get(parentElement);
  own.take(data.seen, (seen) => setStateValue("seen", seen));
  return own.stop;
}

function watch(root) {
  let tell = () => {};
  let known = null; // what the server goes by
  let seen = null;
  let timer = 0;
  let lastInput = -QUIET_MS;

  function isQuiet() {
    const app = document.querySelector("[data-testid=stApp]");
    const isRunning = app?.dataset.testScriptState !== "notRunning";
    return !isRunning && performance.now() - lastInput >= QUIET_MS;
  }

  function say() {
    if (seen === null || known === null || seen === known) return;
    if (isQuiet()) {
      known = seen;
      tell(seen);
    } else timer = setTimeout(say, SETTLE_MS);
  }

  function onInput() {
    lastInput = performance.now();
  }

  function take(given, sender) {
    known = given;
    tell = sender;
    clearTimeout(timer);
    timer = setTimeout(say, SETTLE_MS);
  }

  const observer = new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    clearTimeout(timer);
    timer = setTimeout(say, SETTLE_MS);
  });
  observer.observe(root.closest("[data-testid=stVerticalBlock]") ?? root);

  const inputs = ["pointerdown", "pointerup", "keydown"];
  for (const input of inputs) document.addEventListener(input, onInput, true);

  function stop() {
    for (const input of inputs) document.removeEventListener(input, onInput, true);
    observer.disconnect();
    clearTimeout(timer);
    watched.delete(root);
  }

  return { take, stop };
}
