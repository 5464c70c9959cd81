// Draws a report's figures: plotly lies in the file, compressed, and is unpacked once.
(async () => {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  // For a paper: on white, in ink that prints, in the sizes of the page.
  const forPaper = (plot) => {
    const font = { ...plot.layout.font, color: "#222", family: "Helvetica, Arial, sans-serif" };
    return { data: plot.data, layout: { ...plot.layout, paper_bgcolor: "#fff", font } };
  };
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
  document.querySelectorAll(".plc-figure").forEach((source, number) => {
    const plot = document.createElement("div");
    plot.dataset.number = number + 1;
    source.before(plot);
    const { data, layout } = JSON.parse(source.textContent);
    Plotly.newPlot(plot, data, { ...layout, autosize: true }, config);
  });
})();
