// A figure's layout as it is saved for a paper, and as it fits a narrow screen.

// On white, in ink that prints, in a paper's fonts.
const forPaper = ({ data, layout }) => {
  const color = "#222";
  const inked = (text) => ({ ...text, font: { ...text.font, color } });
  const annotations = (layout.annotations ?? []).map(inked);
  const font = { ...layout.font, color, family: "Helvetica, Arial, sans-serif" };
  return { data, layout: { ...layout, annotations, font, paper_bgcolor: "#fff" } };
};

const axesOf = (layout, letter) => Object.keys(layout)
  .filter((name) => new RegExp(`^${letter}axis\\d*$`).test(name))
  .sort((a, b) => (a.slice(5) || 1) - (b.slice(5) || 1));

const wrapped = (text, most) => text.split(" ").reduce((lines, word) => {
  const last = lines.at(-1);
  return last && `${last} ${word}`.length <= most
    ? [...lines.slice(0, -1), `${last} ${word}`] : [...lines, word];
}, []).join("<br>");

// Panels that stand side by side come to stand one below the other, four or more in two columns.
const restacked = (layout) => {
  const panels = axesOf(layout, "x").map((name) => {
    const axis = layout[name];
    const y = (axis.anchor ?? "y").replace("y", "yaxis");
    return { name, x: axis.domain ?? [0, 1], y: layout[y]?.domain ?? [0, 1], title: axis.title };
  });
  const across = new Set(panels.map(({ x }) => x[0].toFixed(3))).size;
  if (across < 2) return layout;
  panels.sort((a, b) => b.y[1] - a.y[1] || a.x[0] - b.x[0]);
  const columns = across > 3 ? 2 : 1;
  const rows = Math.ceil(panels.length / columns);
  const [room, gap] = [Math.min(240, Math.max(150, 720 / across)), 84];
  const margin = { t: 48, b: 8, ...layout.margin };
  const inner = rows * (room + gap) - gap;
  const result = {
    ...layout,
    height: inner + margin.t + margin.b + 60,
    annotations: layout.annotations ?? [],
    legend: { ...layout.legend, y: 1 + 32 / inner },
  };
  panels.forEach((panel, place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const x = columns === 1 ? [0, 1] : [column * 0.56, column * 0.56 + 0.44];
    const top = 1 - (row * (room + gap)) / inner;
    const y = [Math.max(0, top - room / inner), top];
    // An axis that is shared has title and format at the lowest of its panels.
    const lowest = panel.title?.text ? panel
      : panels.find((other) => other.x[0] === panel.x[0] && other.title?.text) ?? panel;
    const { title, tickformat } = layout[lowest.name];
    const axis = { tickformat, ...layout[panel.name] };
    result[panel.name] = { ...axis, domain: x, showticklabels: true, title };
    axesOf(layout, "y").forEach((name) => {
      const axis = layout[name];
      if ((axis.anchor ?? "x").replace("x", "xaxis") !== panel.name) return;
      const shown = column === 0 || axis.side === "right";
      result[name] = { ...axis, domain: y, ...(shown ? { showticklabels: true } : {}) };
    });
    // The title of a panel stands in the middle of its upper edge.
    result.annotations = result.annotations.map((text) => {
      const middle = (panel.x[0] + panel.x[1]) / 2;
      const own = text.xref === "paper" && text.yref === "paper"
        && Math.abs(text.x - middle) < 0.01 && Math.abs(text.y - panel.y[1]) < 0.01;
      return own && !text.moved ? { ...text, x: (x[0] + x[1]) / 2, y: top, moved: true } : text;
    });
  });
  result.annotations = result.annotations.map(({ moved, ...text }) => text);
  return result;
};

// Long names beside a panel leave it room: in lines of this many characters.
const [NAME, NAME_LINES] = [18, 3];
const namesWrapped = (data, layout) => {
  const result = { ...layout };
  let lines = 0;
  axesOf(layout, "y").forEach((name) => {
    const axis = layout[name];
    const own = data.filter((trace) => (trace.yaxis ?? "y") === name.replace("axis", ""));
    const said = own.flatMap(({ y }) => Array.isArray(y) ? y : []).filter((y) => typeof y === "string");
    const vals = axis.tickvals ?? [...new Set(said)];
    const text = axis.ticktext ?? vals;
    if (vals.length && text.every((one) => typeof one === "string")) {
      const ticktext = text.map((one) => wrapped(one, NAME));
      result[name] = { ...axis, tickvals: vals, ticktext, tickfont: { size: 11 } };
      lines = Math.max(lines, ...ticktext.map((one) => one.split("<br>").length));
    }
  });
  return { ...result, height: layout.height * Math.max(1, lines / NAME_LINES) };
};

const TITLE = 42;
const titleWrapped = (layout) => {
  if (!layout.title?.text) return layout;
  const text = wrapped(layout.title.text, TITLE);
  const more = 20 * (text.split("<br>").length - 1);
  return {
    ...layout,
    height: layout.height + more,
    margin: { ...layout.margin, t: (layout.margin?.t ?? 48) + more },
    title: { ...layout.title, text, pad: { ...layout.title.pad, t: 8 + more / 2 } },
  };
};

// Below a title, and where it is long, the legend of a narrow figure goes under the panels.
const MANY = 6;
const legendBelow = (data, layout) => {
  const entries = data.filter(({ name, showlegend }) => name && showlegend !== false).length;
  if (!layout.title?.text && entries <= MANY) return layout;
  const height = layout.height + (entries > MANY ? 20 * entries : 0);
  const top = layout.margin?.t ?? 48;
  const inner = layout.height - top - (layout.margin?.b ?? 8);
  // The room that the legend had above the panels is not needed there.
  const lines = (layout.title?.text ?? "").split("<br>").length;
  const needed = layout.title?.text ? 44 + 20 * lines : top;
  const saved = Math.max(0, top - needed);
  return {
    ...layout,
    height: height - saved,
    margin: { ...layout.margin, t: top - saved },
    title: { ...layout.title, x: 0, xanchor: "left" },
    legend: { ...layout.legend, y: -72 / inner, yanchor: "top" },
  };
};

const forNarrow = ({ data, layout }) => {
  const known = { ...layout, height: layout.height ?? 450 };
  return namesWrapped(data, legendBelow(data, restacked(titleWrapped(known))));
};
