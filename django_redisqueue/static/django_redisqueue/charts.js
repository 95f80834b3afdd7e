/* Two charts, of all jobs, of a queue or of a task, drawn by uPlot in the admin's colours. */
"use strict";
(() => {
  const element = document.getElementById("drq-chart-data");
  if (!element || !window.uPlot) return;
  let columns = JSON.parse(element.textContent);
  const charts = [];
  const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  const CHARTS = [
    {
      id: "drq-throughput",
      show: (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 })),
      series: [
        { key: "enqueued", label: "Enqueued", color: "--drq-blue", dash: [5, 4] },
        { key: "completed", label: "Completed", color: "--drq-green" },
        { key: "failed", label: "Failed", color: "--drq-red" },
        { key: "retried", label: "Retried", color: "--drq-amber" },
      ],
    },
    {
      id: "drq-latency",
      show: duration,
      series: [
        { key: "wait50", label: "Waited", color: "--drq-blue" },
        { key: "wait95", label: "Waited, 95 %", color: "--drq-blue", dash: [5, 4] },
        { key: "run50", label: "Ran", color: "--drq-amber" },
        { key: "run95", label: "Ran, 95 %", color: "--drq-amber", dash: [5, 4] },
      ],
    },
  ];

  /* The site's time zone, as in the table of figures and the filters. */
  const inZone = { timeZone: window.drqLive.options.zone ?? undefined };

  function duration(seconds) {
    if (seconds == null) return "–";
    if (seconds === 0) return "0";
    if (seconds < 1) return `${+(seconds * 1000).toPrecision(2)} ms`;
    if (seconds < 60) return `${+seconds.toPrecision(2)} s`;
    if (seconds < 3600) return `${+(seconds / 60).toPrecision(2)} m`;
    return `${+(seconds / 3600).toPrecision(2)} h`;
  }

  const isLog = window.drqLive.options.scale === "log"; // which cannot show zeros
  const shown = (values) => (isLog ? values.map((value) => value || null) : values);
  const data = (chart) => [columns.at, ...chart.series.map((each) => shown(columns[each.key]))];
  const top = (_, low, high) => [0, Math.max(high || 0, 0.001) * 1.1];

  function draw(chart) {
    const place = document.getElementById(chart.id);
    const line = { stroke: css("--hairline-color"), width: 1 };
    const axis = { stroke: css("--body-quiet-color"), grid: line, ticks: { show: false }, font: "11px system-ui" };
    place.replaceChildren();
    const made = new uPlot(
      {
        width: place.clientWidth,
        height: 200,
        padding: [10, 20, 0, 0],
        tzDate: (at) => (inZone.timeZone ? uPlot.tzDate(new Date(at * 1000), inZone.timeZone) : new Date(at * 1000)),
        cursor: { y: false, drag: { setScale: false } },
        scales: { y: isLog ? { distr: 3 } : { range: top } },
        axes: [
          { ...axis, size: 32, values: clock },
          { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : chart.show(tick))) },
        ],
        series: [
          { label: "From", value: (_, at) => (at == null ? "–" : new Date(at * 1000).toLocaleString("sv", inZone).slice(0, 16)) },
          ...chart.series.map((each) => ({
            label: each.label,
            stroke: css(each.color),
            dash: each.dash,
            width: 1.5,
            spanGaps: false,
            points: { size: 4 },
            value: (_, value) => chart.show(value),
          })),
        ],
      },
      data(chart),
      place,
    );
    charts.push([chart, made]);
  }

  function clock(_, ticks) {
    const days = columns.at.at(-1) - columns.at[0] > 2 * 86400;
    const form = days ? { weekday: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    return ticks.map((at) => new Date(at * 1000).toLocaleString("en", { ...form, ...inZone }));
  }

  function drawAll() {
    charts.splice(0).forEach(([, made]) => made.destroy());
    CHARTS.forEach(draw);
  }

  drawAll();
  new ResizeObserver(() =>
    charts.forEach(([chart, made]) => {
      const width = document.getElementById(chart.id).clientWidth;
      if (width && width !== made.width) made.setSize({ width, height: 200 });
    }),
  ).observe(document.getElementById("drq-charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });

  (async () => {
    const { getJson, show, sleep, visible, options } = window.drqLive;
    for (;;) {
      await sleep(options.chartPoll);
      await visible();
      try {
        const answer = await getJson(options.charts);
        columns = answer.chart;
        charts.forEach(([chart, made]) => made.setData(data(chart)));
        document.getElementById("drq-throughput").setAttribute("aria-label", answer.label);
        show(answer.fragments);
      } catch {
        // live.js shows the error; the charts stay unchanged
      }
    }
  })();
})();
