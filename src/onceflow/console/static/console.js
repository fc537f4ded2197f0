// The console's pages. Each is a function that asks the server and returns elements; what a
// cluster says is put in as text only, never as HTML.

const page = document.getElementById("page");
const REFRESH_MS = 3000;
let live = true;
let shownRoute = "";
let turn = 0; // An answer that comes after the next question is thrown away.

// ---- elements --------------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const badge = (word) => make("span", { class: `badge ${word}` }, word);
const link = (href, text) => make("a", { href }, text);
const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const time = (ms) => (ms === null || ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " "));

// columns: [title, cell(row), "number" or a class]
function table(rows, columns, empty, { href, rowClass, filter } = {}) {
  if (rows.length === 0) return make("p", { class: "empty" }, empty);
  const head = make("tr", {}, ...columns.map(([title, , kind]) => make("th", { class: kind }, title)));
  const body = rows.map((row) => {
    const cells = columns.map(([, cell, kind]) => make("td", { class: kind }, ...[cell(row)].flat()));
    return make(
      "tr",
      { class: rowClass && rowClass(row), "data-href": href && href(row), "data-filter": filter && filter(row) },
      ...cells,
    );
  });
  return make(
    "div", { class: "scroll" },
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)),
  );
}

function filterBox(label) {
  return make("input", {
    type: "search", id: "filter", placeholder: `${label} ( / )`, "aria-label": label,
    value: state.filter, oninput: (event) => { state.filter = event.target.value; applyFilter(); },
  });
}

function applyFilter() {
  const wanted = state.filter.toLowerCase();
  for (const row of page.querySelectorAll("tr[data-filter]")) {
    row.hidden = !row.dataset.filter.toLowerCase().includes(wanted);
  }
}

// ---- asking ----------------------------------------------------------------------------------

async function ask(path, options) {
  const answer = await fetch(path, options);
  const text = await answer.text();
  let found;
  try { found = JSON.parse(text); } catch { throw new Error(`${answer.status}: ${text.slice(0, 300)}`); }
  if (!answer.ok) throw new Error(found.error);
  return found;
}

const encode = encodeURIComponent;
let mayReplay = false; // Whether the server lets dead letters be replayed.
const state = { filter: "", internal: false, partition: 0, from: "latest", limit: 100, trail: [] };

// ---- pages -----------------------------------------------------------------------------------

async function overviewPage() {
  const [found, open] = await Promise.all([ask("api/overview"), ask("api/transactions")]);
  const cards = [
    ["topics", found.topics, "#/topics"], ["groups", found.groups, "#/groups"],
    ["open transactions", found.open_transactions, "#/transactions"], ["brokers", found.brokers.length, null],
  ].map(([name, value, href]) => {
    const content = [make("b", {}, number(value)), make("span", {}, name)];
    return href ? make("a", { class: "card", href }, ...content) : make("div", { class: "card" }, ...content);
  });
  return [
    make("h1", {}, `Cluster ${found.cluster_id}`),
    make("div", { class: "cards" }, ...cards),
    make("h2", {}, "Brokers"),
    table(found.brokers, [
      ["node", (row) => number(row.node_id), "number"],
      ["address", (row) => `${row.host}:${row.port}`],
      ["rack", (row) => row.rack ?? "–"],
      ["", (row) => (row.node_id === found.controller_id ? badge("controller") : "")],
    ], "no brokers"),
    make("h2", {}, "Open transactions"),
    transactionTable(open.filter((row) => "partitions" in row), "no transaction is open"),
  ];
}

async function topicsPage() {
  const rows = (await ask("api/topics")).filter((row) => state.internal || !row.is_internal);
  const troubles = (row) => [
    row.without_leader ? badge("no leader") : "",
    row.under_replicated ? badge("under-replicated") : "",
  ];
  return [
    make("h1", {}, "Topics"),
    make("div", { class: "tools" }, filterBox("Filter topics"),
      make("label", {}, make("input", {
        type: "checkbox", checked: state.internal,
        onchange: (event) => { state.internal = event.target.checked; show(); },
      }), "internal topics too")),
    table(rows, [
      ["topic", (row) => link(`#/topics/${encode(row.topic)}`, row.topic)],
      ["partitions", (row) => number(row.partitions), "number"],
      ["replicas", (row) => number(row.replicas), "number"],
      ["offsets", (row) => number(row.offsets), "number"],
      ["a second", (row) => (row.offsets_a_second === null ? "–" : number(Math.round(row.offsets_a_second))), "number"],
      ["behind open transactions", (row) => number(row.behind_open_transactions), "number"],
      ["", troubles],
    ], "there are no topics", { href: (row) => `#/topics/${encode(row.topic)}`, filter: (row) => row.topic }),
  ];
}

async function topicPage(name) {
  const query = new URLSearchParams({ partition: state.partition, from: state.from, limit: state.limit });
  const [found, messages] = await Promise.all([
    ask(`api/topics/${encode(name)}`), ask(`api/topics/${encode(name)}/messages?${query}`),
  ]);
  const open = found.partitions.flatMap((row) =>
    row.open_transactions.map((each) => ({ partition: row.partition, ...each })));
  return [
    make("h1", {}, name),
    mayReplay && messages.messages.some((row) => row.failure)
      ? make("div", { class: "tools" }, make("button", {
        type: "button", id: "open-replay", onclick: () => openReplay(name),
      }, "replay dead letters"))
      : null,
    ...messagesSection(found, messages),
    make("h2", {}, "Partitions"),
    table(found.partitions, [
      ["partition", (row) => number(row.partition), "number"],
      ["leader", (row) => number(row.leader), "number"],
      ["replicas", (row) => row.replicas.join(", ")],
      ["in sync", (row) => row.isr.join(", ")],
      ["start", (row) => number(row.start), "number"],
      ["last stable", (row) => number(row.stable), "number"],
      ["end", (row) => number(row.end), "number"],
    ], "no partitions"),
    make("h2", {}, "Open transactions here"),
    table(open, [
      ["partition", (row) => number(row.partition), "number"],
      ["producer", (row) => `${row.producer_id}, epoch ${row.producer_epoch}`],
      ["first offset", (row) => number(row.first_offset), "number"],
      ["last written", (row) => time(row.last_timestamp_ms)],
    ], "no transaction is open in this topic"),
    make("h2", {}, "Settings of the topic"),
    table(found.settings.filter((row) => !row.is_default), [
      ["name", (row) => row.name], ["value", (row) => row.value ?? "(hidden)"],
    ], "all settings have their defaults"),
  ];
}

function messagesSection(topic, found) {
  const choose = (changes) => { Object.assign(state, changes); show(); };
  const partition = make("select", {
    "aria-label": "partition", onchange: (event) => choose({ partition: Number(event.target.value), from: "latest", trail: [] }),
  }, ...topic.partitions.map((row) =>
    make("option", { value: row.partition, selected: row.partition === state.partition }, String(row.partition))));
  const from = make("input", {
    "aria-label": "from", size: 16, value: state.from, title: "an offset, earliest, latest, or @milliseconds",
    onchange: (event) => choose({ from: event.target.value.trim() || "latest", trail: [] }),
  });
  const first = found.messages.length ? found.messages[0].offset : found.next_offset;
  const earlier = make("button", {
    type: "button", id: "earlier", disabled: first <= found.log_start_offset,
    onclick: () => choose({ from: String(Math.max(found.log_start_offset, first - state.limit)) }),
  }, "[ earlier");
  const later = make("button", {
    type: "button", id: "later", disabled: found.next_offset >= found.high_watermark,
    onclick: () => choose({ from: String(found.next_offset) }),
  }, "later ]");
  return [
    make("div", { class: "tools" },
      make("label", {}, "partition", partition), make("label", {}, "from", from), earlier, later,
      make("button", { type: "button", onclick: () => choose({ from: "latest" }) }, "newest"),
      make("span", { class: "soft" },
        `offsets ${number(found.log_start_offset)} to ${number(found.high_watermark)}, ` +
        (found.last_stable_offset < found.high_watermark
          ? `readers of committed records wait at ${number(found.last_stable_offset)}`
          : "nothing waits"))),
    table(found.messages, [
      ["offset", (row) => number(row.offset), "number"],
      ["time", (row) => time(row.timestamp_ms)],
      ["transaction", (row) => (row.kind === "record"
        ? (row.transaction ? badge(row.transaction) : "") : badge(row.kind))],
      ["producer", (row) => (row.producer_id < 0 ? "–" : `${row.producer_id}/${row.producer_epoch}`)],
      ["key", (row) => (row.kind === "record" ? data(row.key) : ""), "data"],
      ["value", (row) => (row.error ? row.error : row.kind === "record" ? data(row.value) : ""), "data"],
      ["headers", headers, "data"],
    ], "no messages here", {
      rowClass: (row) => (row.kind === "record" ? row.transaction : row.kind === "unreadable" ? row.kind : "marker"),
    }),
  ];
}

// Of a dead letter the failure comes first; its traceback opens on a click.
function headers(row) {
  const all = row.headers.map(([name, value]) => make("div", {}, `${name}: ${data(value)}`));
  if (!row.failure) return all;
  const { topic, partition, offset, processor, attempts } = row.failure;
  return [
    make("div", { class: "aborted" }, `${row.failure.class}: ${row.failure.message}`),
    make("div", {}, `from ${topic}:${partition} at ${offset}, in ${processor}, ${attempts} attempts`),
    make("details", {}, make("summary", {}, `${all.length} headers`), ...all),
  ];
}

function data(value) {
  if (value === null) return "null";
  const form = ["text", "json"].includes(value.format) ? "" : `${value.format}: `;
  return form + value.text + (value.problem ? ` (${value.problem})` : "") + (value.cut ? `… (${number(value.bytes)} bytes)` : "");
}

function openReplay(topic) {
  const [dialog, told] = [document.getElementById("replay"), document.getElementById("replay-text")];
  told.textContent = `Those of ${topic} that were not replayed yet go back to the partitions that they came from, in one transaction with the group ${topic}-replay.`;
  const run = async (dryRun) => {
    try {
      const found = await ask(`api/topics/${encode(topic)}/replay?dry_run=${dryRun ? 1 : 0}`, {
        method: "POST", headers: { Authorization: `Bearer ${document.getElementById("token").value}` },
      });
      const sent = found.sent.map((row) => `${number(row.records)} to ${row.topic}`).join(", ");
      told.textContent = `${found.dry_run ? "It would send" : "Sent"}: ${sent || "nothing is left"}.`;
    } catch (error) { told.textContent = error.message; }
  };
  document.getElementById("replay-count").onclick = () => run(true);
  document.getElementById("replay-go").onclick = () => run(false);
  dialog.showModal();
}

// ---- processors

async function processorsPage() {
  const rows = await ask("api/processors");
  const troubles = rows.filter((row) => row.error);
  const apps = new Map();
  for (const row of rows.filter((each) => !each.error)) apps.set(row.app, [...(apps.get(row.app) ?? []), row]);
  const sections = [...apps].flatMap(([app, workers]) => {
    const functions = new Map();
    for (const worker of workers) {
      for (const [name, counts] of Object.entries(worker.functions)) {
        const sum = functions.get(name) ?? { name, processed: 0, failed: 0, dead_letters: 0 };
        for (const what of ["processed", "failed", "dead_letters"]) sum[what] += counts[what];
        functions.set(name, sum);
      }
    }
    const places = workers.flatMap((worker) => worker.tasks.map((task) => ({ worker, ...task })));
    const left = (row) => row.worker.restoring.filter((each) => row.task.endsWith(`-${each.partition}`))
      .reduce((sum, each) => sum + each.offsets_left, 0);
    return [
      make("h2", {}, app, " ", link(`#/groups/${encode(workers[0].group)}`, `group ${workers[0].group}`)),
      make("div", { class: "scroll" }, graph(workers[0].graph)),
      table(workers, [
        ["worker", (row) => row.address],
        ["", (row) => badge(row.ready ? "ready" : "starting")],
        ["records a second", (row) => fixed(row.records_a_second), "number"],
        ["commits a second", (row) => fixed(row.commits_a_second), "number"],
        ["ms a commit", (row) => fixed(row.commit_ms), "number"],
        ["lag", (row) => number(row.lag), "number"],
        ["aborts", (row) => number(row.units_aborted), "number"],
        ["dead letters", (row) => number(row.dead_letters), "number"],
      ], "no worker"),
      make("h2", {}, `Functions of ${app}`),
      table([...functions.values()], [
        ["function", (row) => row.name],
        ["processed", (row) => number(row.processed), "number"],
        ["failed", (row) => number(row.failed), "number"],
        ["dead letters", (row) => number(row.dead_letters), "number"],
      ], "no functions"),
      make("h2", {}, `Tasks of ${app}`),
      table(places, [
        ["task", (row) => row.task],
        ["status", (row) => badge(row.status)],
        ["offsets left to restore", (row) => (row.status === "RUNNING" ? "–" : number(left(row))), "number"],
        ["state bytes", (row) => number(row.state_bytes), "number"],
        ["worker", (row) => row.worker.address],
      ], "no tasks"),
    ];
  });
  return [
    make("h1", {}, "Processors"),
    ...troubles.map((row) => make("p", { class: "aborted" }, `${row.address}: ${row.error}`)),
    ...(rows.length ? sections : [make("p", { class: "empty" }, "Give --worker http://HOST:PORT, the health port of a worker.")]),
  ];
}

const fixed = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }));

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Each node stands one column behind the last of those that it takes from.
function graph({ nodes, edges }) {
  const column = new Map(nodes.map((node) => [node.name, 0]));
  for (let turn = 0; turn < nodes.length; turn += 1) {
    for (const { source, target } of edges) {
      if (column.get(target) <= column.get(source) && column.get(source) < nodes.length) {
        column.set(target, column.get(source) + 1);
      }
    }
  }
  const [width, height, gapX, gapY] = [190, 44, 50, 16];
  const rows = new Map();
  const at = new Map(nodes.map((node) => {
    const x = column.get(node.name);
    const y = rows.get(x) ?? 0;
    rows.set(x, y + 1);
    return [node.name, [10 + x * (width + gapX), 10 + y * (height + gapY)]];
  }));
  const paths = edges.filter(({ source, target }) => at.has(source) && at.has(target)).map(({ source, target }) => {
    const [[x1, y1], [x2, y2]] = [at.get(source), at.get(target)];
    const [fromX, fromY, toY] = [x1 + width, y1 + height / 2, y2 + height / 2];
    return svg("path", { d: `M${fromX},${fromY} C${fromX + gapX / 2},${fromY} ${x2 - gapX / 2},${toY} ${x2},${toY}` });
  });
  const boxes = nodes.map((node) => {
    const [x, y] = at.get(node.name);
    const states = node.states.map((each) => each.name.split(".").pop()).join(", ");
    const second = states ? `${node.kind}, state ${states}` : node.kind;
    const short = (text) => (text.length > 27 ? `${text.slice(0, 26)}…` : text);
    return svg("g", { class: node.kind },
      svg("title", {}, `${node.name}: ${node.takes || "bytes"} to ${node.gives || "nothing"}`),
      svg("rect", { x, y, width, height, rx: 8 }),
      svg("text", { x: x + 10, y: y + 18 }, short(node.name)),
      svg("text", { x: x + 10, y: y + 35, class: "soft" }, short(second)));
  });
  const [w, h] = [Math.max(...column.values(), 0) + 1, Math.max(...rows.values(), 1)];
  const size = { width: 20 + w * width + (w - 1) * gapX, height: 20 + h * height + (h - 1) * gapY };
  return svg("svg", { class: "graph", role: "img", "aria-label": `topology of ${nodes.length} nodes`, ...size,
    viewBox: `0 0 ${size.width} ${size.height}` }, ...paths, ...boxes);
}

async function groupsPage() {
  const rows = await ask("api/groups");
  return [
    make("h1", {}, "Groups"),
    make("div", { class: "tools" }, filterBox("Filter groups")),
    table(rows, [
      ["group", (row) => link(`#/groups/${encode(row.group)}`, row.group)],
      ["state", (row) => badge(row.state)],
      ["type", (row) => row.type],
      ["lag", (row) => number(row.lag), "number"],
    ], "there are no groups", { href: (row) => `#/groups/${encode(row.group)}`, filter: (row) => row.group }),
  ];
}

async function groupPage(name) {
  const found = await ask(`api/groups/${encode(name)}`);
  return [
    make("h1", {}, name, " ", badge(found.state)),
    make("h2", {}, "Lag over time"),
    chart(found.history),
    make("h2", {}, `Partitions, ${found.members} members`),
    table(found.partitions, [
      ["topic", (row) => link(`#/topics/${encode(row.topic)}`, row.topic)],
      ["partition", (row) => number(row.partition), "number"],
      ["committed", (row) => number(row.committed), "number"],
      ["end", (row) => number(row.end), "number"],
      ["lag", (row) => number(row.lag), "number"],
      ["client", (row) => row.client_id ?? "–"],
      ["instance", (row) => row.instance_id ?? "–"],
      ["host", (row) => row.host ?? "–"],
    ], "nothing is committed and nobody reads"),
  ];
}

function chart(samples) {
  if (samples.length < 2) return make("p", { class: "empty" }, "The first samples are being taken.");
  const [begin, end] = [samples[0][0], samples[samples.length - 1][0]];
  const most = Math.max(1, ...samples.map(([, lag]) => lag));
  const points = samples.map(([at, lag]) =>
    `${(((at - begin) / (end - begin || 1)) * 1000).toFixed(1)},${(150 - (lag / most) * 130).toFixed(1)}`);
  const label = (x, y, text, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
  return svg("svg", {
    class: "chart", viewBox: "0 0 1000 180", preserveAspectRatio: "none", role: "img",
    "aria-label": `lag, at most ${most}, now ${samples[samples.length - 1][1]}`,
  }, svg("polyline", { points: points.join(" ") }),
  label(6, 15, `${number(most)} records`, "start"),
  label(6, 172, `${duration(end - begin)} ago`, "start"),
  label(994, 172, `now: ${number(samples[samples.length - 1][1])}`, "end"));
}

function transactionTable(rows, empty) {
  return table(rows, [
    ["transactional id", (row) => row.transactional_id],
    ["state", (row) => badge(row.state)],
    ["age", (row) => duration(row.age_ms), "number"],
    ["timeout", (row) => duration(row.timeout_ms), "number"],
    ["producer", (row) => row.producer_epoch === undefined ? String(row.producer_id) : `${row.producer_id}, epoch ${row.producer_epoch}`],
    ["partitions", (row) => (row.partitions ?? []).map((each) =>
      make("div", {}, link(`#/topics/${encode(each.topic)}`, `${each.topic}:${each.partition}`)))],
  ], empty, { filter: (row) => row.transactional_id });
}

async function transactionsPage() {
  const rows = await ask("api/transactions");
  return [
    make("h1", {}, "Transactions"),
    make("div", { class: "tools" }, filterBox("Filter transactional ids")),
    transactionTable(rows, "there are no transactional ids"),
  ];
}

// ---- showing ---------------------------------------------------------------------------------

const ROUTES = [
  [/^#\/topics\/([^/]+)$/, topicPage], [/^#\/topics$/, topicsPage],
  [/^#\/groups\/([^/]+)$/, groupPage], [/^#\/groups$/, groupsPage],
  [/^#\/transactions$/, transactionsPage], [/^#\/processors$/, processorsPage], [/^#?\/?$/, overviewPage],
];

async function show() {
  const mine = ++turn;
  const route = location.hash;
  if (route !== shownRoute) {
    Object.assign(state, { filter: "", partition: 0, from: "latest", trail: [] });
    document.body.removeAttribute("data-shown");
  }
  for (const each of document.querySelectorAll("nav a")) {
    if (route.startsWith(each.getAttribute("href"))) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const found = ROUTES.map(([form, make]) => [form.exec(route), make]).find(([match]) => match);
  try {
    if (!found) throw new Error(`there is no page ${route}`);
    const elements = await found[1](...found[0].slice(1).map(decodeURIComponent));
    if (mine !== turn) return;
    const selected = selectedIndex();
    const focused = document.activeElement?.id;
    page.replaceChildren(...elements);
    if (route === shownRoute) { select(selected); if (focused === "filter") document.getElementById("filter")?.focus(); }
    shownRoute = route;
    applyFilter();
    problem(null);
    document.body.dataset.shown = route || "#/";
  } catch (error) {
    if (mine !== turn) return;
    if (route !== shownRoute) page.replaceChildren();
    problem(error.message);
  }
}

function problem(text) {
  const place = document.getElementById("problem");
  place.hidden = text === null;
  place.textContent = text ?? "";
}

// ---- keys ------------------------------------------------------------------------------------

const visibleRows = () => [...page.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
const selectedIndex = () => visibleRows().findIndex((row) => row.classList.contains("selected"));

function select(index) {
  const rows = visibleRows();
  for (const row of rows) row.classList.remove("selected");
  if (index < 0 || index >= rows.length) return;
  rows[index].classList.add("selected");
  rows[index].scrollIntoView({ block: "nearest" });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
}

const otherTheme = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

function setLive(on) {
  live = on;
  document.getElementById("live").setAttribute("aria-pressed", String(on));
}

let after = "";
const KEYS = {
  "/": (event) => { event.preventDefault(); document.getElementById("filter")?.focus(); },
  j: () => select(Math.min(selectedIndex() + 1, visibleRows().length - 1)),
  k: () => select(Math.max(selectedIndex() - 1, 0)),
  Enter: () => { const row = visibleRows()[selectedIndex()]; if (row?.dataset.href) location.hash = row.dataset.href; },
  "[": () => document.getElementById("earlier")?.click(),
  "]": () => document.getElementById("later")?.click(),
  l: () => setLive(!live),
  d: otherTheme,
  "?": () => document.getElementById("help").showModal(),
};
const GO = { t: "#/topics", g: "#/groups", x: "#/transactions", p: "#/processors", o: "#/" };

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const wasG = after === "g";
  after = wasG ? "" : event.key;
  if (wasG && event.key in GO) location.hash = GO[event.key];
  else if (event.key in KEYS && !(event.key === "Enter" && event.target.matches("a, button"))) KEYS[event.key](event);
});

document.getElementById("theme").addEventListener("click", otherTheme);
document.getElementById("live").addEventListener("click", () => setLive(!live));
document.getElementById("keys").addEventListener("click", () => KEYS["?"]());
window.addEventListener("hashchange", () => { page.focus(); show(); });
setInterval(() => {
  // Whoever types or has chosen older messages is not disturbed.
  const typing = document.activeElement?.matches("input, select");
  if (live && !typing && !document.hidden && state.from === "latest") show();
}, REFRESH_MS);

theme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
ask("api/writing").then((found) => { mayReplay = found.replay; }, () => {});
ask("api/overview").then((found) => {
  document.getElementById("cluster").textContent = `cluster ${found.cluster_id}`;
}, () => {});
show();
