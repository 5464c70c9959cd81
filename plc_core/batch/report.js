// Draws a report's figures: they and plotly lie in the file, packed by packing.py.
(async () => {
  const packed = document.getElementById("packed").textContent;
  const bytes = new Uint8Array((packed.length * 7) >> 3);
  for (let sign = 0, byte = 0, held = 0, bits = 0; sign < packed.length; sign++) {
    held = (held << 7) | (packed.charCodeAt(sign) & 127);
    bits += 7;
    if (bits >= 8) bytes[byte++] = held >> (bits -= 8);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  const end = text.indexOf("\n");
  const script = document.createElement("script");
  script.textContent = text.slice(end);
  document.head.append(script);

  const save = (format) => ({
    name: format,
    title: `Save as ${format.toUpperCase()}`,
    icon: Plotly.Icons.camera,
    click: (plot) => Plotly.downloadImage(forPaper(plot), {
      format, filename: `${document.title}-${plot.dataset.number}`,
      width: plot.offsetWidth, height: plot.offsetHeight, scale: format === "png" ? 3 : 1,
    }),
  });
  const config = { responsive: true, displaylogo: false, modeBarButtons: [[save("svg"), save("png")]] };
  const places = document.querySelectorAll(".plc-figure");
  const figures = JSON.parse(text.slice(0, end));
  const narrow = matchMedia("(max-width: 600px)");
  const draw = () => figures.forEach((figure, number) => {
    places[number].dataset.number = number + 1;
    const layout = narrow.matches ? forNarrow(figure) : figure.layout;
    Plotly.react(places[number], figure.data, { ...layout, autosize: true }, config);
  });
  draw();
  narrow.addEventListener("change", draw);
})();
