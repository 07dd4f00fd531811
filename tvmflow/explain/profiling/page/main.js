// The page: what it says at the top, its sections, and the first drawing.

function facet(name, value, detail) {
  return element("div", { class: "facet" }, element("span", { class: "note" }, name),
    element("strong", {}, value), detail ? element("span", { class: "note" }, detail) : null);
}

function summary(profile) {
  const { whole, kernels, host_ms, module, device } = profile;
  const flops = sum(kernels.map((kernel) => kernel.flops ?? 0));
  const peak = Math.max(...profile.memory.map((step) => step.live_bytes));
  const spread = `${number(whole.p10_ms)} to ${number(whole.p90_ms)} ms in ${profile.runs} runs`;
  return element("div", { class: "summary" },
    comparing ? element("h2", {}, profile.sideName) : null,
    element("p", {}, `${module.path}: ${module.target}, kernels for ${module.device}, on ` +
      `${device.name}. `, element("span", { class: "note" },
      [device.driver && `Driver ${device.driver}`, device.version, versionsOf(module)]
        .filter(Boolean).join("; "))),
    element("div", { class: "facets" },
      facet("a call", microseconds(whole.median_ms * 1e3), spread),
      facet("kernels", microseconds(profile.kernels_us), launchesText(profile)),
      facet("host", microseconds(host_ms * 1e3),
        `${percent(part(host_ms, whole.median_ms))} of a call`),
      facet("arithmetic", flops ? scaled(flops, "FLOP") : NONE,
        flops ? `${number(part(flops / 1e3, profile.kernels_us))} GFLOP/s over the kernels` : null),
      facet("memory", bytes(profile.weights_bytes),
        profile.memory.length ? `weights; ${bytes(peak)} more at most` : "weights")),
    kernels.length ? stacked("Time by what holds kernels back", boundTimes(kernels)) : null,
    stacked("First call", ["load", "build", "upload", "run"].map((name, rank) => (
      { name, colour: `shade${rank}`, us: (profile.first_call[`${name}_ms`] ?? 0) * 1e3 }))),
    profile.notes.length
      ? element("ul", { class: "notes" }, profile.notes.map((note) => element("li", {}, note)))
      : null);
}

function launchesText({ kernels, between_ms }) {
  const launches = kernels.length === 1 ? "1 launch" : `${number(kernels.length)} launches`;
  // By the host's clock gaps are longer than where nobody measures; less than clocks tell is rounding.
  const known = between_ms > 1e-6 && kernels.every((kernel) => kernel.clock === "device");
  return known ? `${launches}, ${microseconds(1e3 * between_ms)} between them` : launches;
}

function versionsOf(module) {
  return Object.entries(module.versions).map((pair) => pair.join(" ")).join(", ");
}

function boundTimes(kernels) {
  const times = Object.entries(BOUNDS).map(([name, colour]) => ({ name, colour: `colour${colour}`,
    us: sum(kernels.filter((k) => k.bound === name).map((k) => k.median_us)) }));
  const rest = sum(kernels.filter((k) => k.bound === null).map((k) => k.median_us));
  return [...times, { name: UNKNOWN, colour: "colour0", us: rest }];
}

/** Parts of a whole in one bar, each named below with its time. */
function stacked(title, all) {
  const parts = all.filter((part) => part.us > 0);
  const total = sum(parts.map((part) => part.us));
  const pieces = parts.map((part) => {
    const piece = element("i", { class: part.colour,
      "data-tip": `${part.name}: ${microseconds(part.us)}, ${percent(part.us / total)}` });
    piece.style.flexGrow = part.us / total;
    return piece;
  });
  const names = parts.map((part) => element("li", { class: part.colour }, element("i"),
    `${part.name} ${microseconds(part.us)}, ${percent(part.us / total)}`));
  return element("figure", { class: "stacked" },
    element("figcaption", { class: "note" }, `${title}: ${microseconds(total)}`),
    element("div", { class: "stack" }, pieces), element("ul", { class: "legend" }, names));
}

/** A section with a part for each profile, side by side or one below the other. */
function section(id, title, draw, beside = true) {
  const parts = profiles.map((profile) => element("div", {},
    comparing ? element("h3", {}, profile.sideName) : null, draw(profile)));
  return element("section", { id }, element("h2", {}, title),
    element("div", { class: comparing && beside ? "sides" : null }, parts));
}

function colourChoice() {
  const choice = element("select", { id: "colouring", change: () => recolour(choice.value) },
    element("option", { value: "family" }, "schedule family"),
    element("option", { value: "bound" }, "what holds them back"));
  return element("div", { class: "colours" },
    element("label", {}, "Kernels coloured by ", choice), legend());
}

/** What links and the keyboard go to is not scrolled under the list of sections. */
function makeRoom() {
  const list = document.getElementById("sections");
  const room = `${getComputedStyle(list).position === "sticky" ? list.offsetHeight : 0}px`;
  const { style } = document.documentElement;
  // Setting it lays out all of the page again.
  if (style.scrollPaddingTop !== room) style.scrollPaddingTop = room;
}

function drawPage() {
  document.getElementById("head").append(
    element("h1", {}, document.title),
    comparing ? headline() : "",
    element("div", { class: comparing ? "sides" : null }, profiles.map(summary)));
  if (comparing) document.body.classList.add("wide");
  const sections = [
    comparing ? element("section", { id: "comparison" }, element("h2", {}, "Before and after"),
      comparisonTable()) : null,
    section("roofline", "Roofline", (profile) => element("div", {},
      panel((width) => rooflineChart(profile, width)), rooflineNote(profile))),
    section("layers", "Time by layer", (profile) => element("div", {},
      panel((width) => treemap(profile, width)), bars(profile))),
    section("timeline", "Timeline and memory", timelineView),
    section("kernels", "Kernels", kernelTable, false),
    profiles.some(({ kernels }) => kernels.some((kernel) => kernel.yardstick))
      ? section("yardstick", "TFLite on phones", yardstickTable, false) : null,
    section("findings", "Findings", findingsView),
  ].filter(Boolean);
  document.getElementById("sections").append(
    ...sections.map((one) => element("a", { href: `#${one.id}` },
      one.querySelector("h2").textContent)), colourChoice());
  // Before there is more to lay out; what follows then takes Chromium two thirds of the time.
  makeRoom();
  document.getElementById("main").append(...sections);
  drawPanels();
  addEventListener("resize", () => requestAnimationFrame(drawPanels));
  new ResizeObserver(makeRoom).observe(document.getElementById("sections"));
  openAddress();
}

drawPage();
// Milliseconds since the page was asked for, until all of it is laid out.
requestAnimationFrame(() => setTimeout(() => {
  document.documentElement.dataset.drawnMs = Math.round(performance.now());
}));
