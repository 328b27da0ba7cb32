// The page of the energy server: the list of jobs, and of one of them the frontier, a slider over it and the timeline of
// the plan under the slider. Everything it shows comes from /jobs and /frontier; it decides nothing.
"use strict";

const $ = (id) => document.getElementById(id);
const EVERY = 2000; // milliseconds between looks at the server
const MOST = 50; // jobs in the list
const SVG = "http://www.w3.org/2000/svg";
const RAMP = [[48, 64, 158], [38, 130, 170], [70, 178, 120], [222, 190, 60], [214, 84, 48]]; // lowest to highest MHz

let chosen = null; // the job that is shown
let shown = null; // its facts, as of the last look
let wanted = null; // the seconds under the slider; null follows what is played
let drawn = ""; // what the timeline shows now, so that it is drawn again only when that changes
let asking = null; // the request behind the slider

// -- the wire ----------------------------------------------------------------------------------------------------------

function token() {
  const fragment = new URLSearchParams(location.hash.slice(1)).get("token");
  if (fragment) {
    sessionStorage.setItem("token", fragment);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

async function ask(path, signal) {
  const held = token();
  const headers = held ? { Authorization: `Bearer ${held}` } : {};
  const reply = await fetch(path, { headers, signal });
  $("door").hidden = reply.status !== 401;
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.detail);
  return answer;
}

// -- words -------------------------------------------------------------------------------------------------------------

const seconds = (value) => `${value.toPrecision(5)} s`;
const joules = (value) => `${value.toPrecision(5)} J`;
const percent = (value) => `${(100 * Math.abs(value)).toFixed(1)} %`;
const less = (value) => `${percent(value)} ${value >= 0 ? "less" : "more"} energy`;
const slower = (value) => (Math.abs(value) < 5e-4 ? "as fast" : `${percent(value)} ${value >= 0 ? "slower" : "faster"}`);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// -- jobs --------------------------------------------------------------------------------------------------------------

function showJobs(jobs) {
  $("none").hidden = jobs.length > 0;
  const rows = [...jobs].reverse().map((job) => {
    const row = element("tr", undefined, { "aria-selected": job.job === chosen });
    const name = element("td");
    name.append(element("button", job.job));
    const device = element("td", job.device || "not told");
    if (job.simulated) device.className = "simulated";
    row.append(name, device, element("td", job.scheduler), element("td", job.phase));
    const ranks = job.registered < job.world_size ? `${job.registered} of ${job.world_size}` : job.world_size;
    const saved = job.measured;
    for (const text of [
      ranks,
      job.round < 0 ? "" : job.round,
      saved ? `${saved.energy >= 0 ? "−" : "+"}${percent(saved.energy)}` : "",
      saved ? `${saved.slowdown >= 0 ? "+" : "−"}${percent(saved.slowdown)}` : "",
    ]) row.append(element("td", text, { class: "number" }));
    row.addEventListener("click", () => choose(job.job));
    return row;
  });
  $("jobs").replaceChildren(...rows);
}

function choose(job) {
  chosen = job;
  shown = wanted = null;
  drawn = "";
  look();
}

// -- one job -----------------------------------------------------------------------------------------------------------

function showDetail(facts) {
  shown = facts;
  $("detail").hidden = false;
  $("name").textContent = facts.job;
  $("simulated").hidden = !facts.simulated;
  const parts = [
    facts.device ? `device: ${facts.device}` : "device not told",
    `${facts.schedule}, ${facts.pp_degree} stages x ${facts.microbatches} microbatches`,
    `${facts.dp_degree} ${facts.dp_degree === 1 ? "replica" : "replicas"}, ${facts.world_size} ranks`,
    `${facts.reports} reports`,
  ];
  if (facts.straggler) parts.push(`straggler: iterations take ${facts.straggler} times the shortest`);
  if (facts.metadata) parts.push(facts.metadata);
  $("summary").textContent = parts.join(" · ");
  const solved = facts.points.length > 0;
  $("solved").hidden = !solved;
  $("waiting").hidden = solved;
  $("waiting").textContent = solved ? "" : whyNot(facts);
  if (!solved) return;
  drawCurve(facts);
  moveTo(wanted ?? facts.played ?? facts.time_min, wanted === null);
}

function whyNot(facts) {
  if (facts.missing.length) return `Waiting for rank ${facts.missing.join(", ")}.`;
  if (facts.reason) return `No frontier: ${facts.reason}`;
  if (facts.phase === "all-max") return "Every rank runs at its highest frequency; this scheduler makes no frontier.";
  if (facts.clocks) return `Profiling: the stages run at ${facts.clocks.join(", ")} MHz.`;
  return "The frontier is not known yet.";
}

// -- the curve ---------------------------------------------------------------------------------------------------------

function scales(facts) {
  const marks = [...facts.points];
  if (facts.all_max) marks.push([facts.all_max.time, facts.all_max.energy]);
  // What was measured belongs to the picture unless it would crush the rest of it: then it stands at the border.
  const far = [0, 1].map((at) => 2 * Math.max(...marks.map((mark) => mark[at])));
  marks.push(...facts.rounds.map((r) => [r.time, r.energy]).filter(([t, e]) => t < far[0] && e < far[1]));
  const range = (at) => {
    const values = marks.map((mark) => mark[at]);
    const low = Math.min(...values), high = Math.max(...values);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };
  const [left, right] = range(0), [bottom, top] = range(1);
  return {
    x: (time) => 70 + Math.min(1, (time - left) / (right - left)) * 870,
    y: (energy) => 262 - Math.min(1, (energy - bottom) / (top - bottom)) * 246,
    times: ticks(left, right), energies: ticks(bottom, top),
  };
}

function ticks(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high; at++) found.push(+(at * step).toPrecision(8));
  return found;
}

function drawCurve(facts) {
  const { x, y, times, energies } = scales(facts);
  const made = [];
  const add = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    made.push(node);
  };
  for (const time of times) {
    add("line", { class: "axis", x1: x(time), x2: x(time), y1: 16, y2: 262 });
    add("text", { x: x(time), y: 280, "text-anchor": "middle" }, time);
  }
  for (const energy of energies) {
    add("line", { class: "axis", x1: 70, x2: 940, y1: y(energy), y2: y(energy) });
    add("text", { x: 62, y: y(energy) + 4, "text-anchor": "end" }, energy);
  }
  add("text", { x: 940, y: 297, "text-anchor": "end" }, "seconds of an iteration");
  add("text", { x: 8, y: 12 }, "joules of an iteration, all ranks");
  for (const round of facts.rounds) {
    add("circle", { class: "measured", cx: x(round.time), cy: y(round.energy), r: 3 });
  }
  add("polyline", { class: "frontier", points: facts.points.map(([t, e]) => `${x(t)},${y(e)}`).join(" ") });
  if (facts.all_max) add("circle", { class: "highest", cx: x(facts.all_max.time), cy: y(facts.all_max.energy), r: 5 });
  if (facts.played) add("circle", { class: "played", cx: x(facts.played), cy: y(energyAt(facts, facts.played)), r: 5 });
  add("circle", { class: "chosen", id: "chosen", r: 6, cx: -20, cy: -20 });
  $("curve").replaceChildren(...made);
}

function energyAt(facts, time) {
  const after = facts.points.findIndex(([at]) => at >= time);
  if (after <= 0) return facts.points[after < 0 ? facts.points.length - 1 : 0][1];
  const [[t0, e0], [t1, e1]] = [facts.points[after - 1], facts.points[after]];
  return e0 + ((e1 - e0) * (time - t0)) / (t1 - t0 || 1);
}

// -- the slider and what is under it -----------------------------------------------------------------------------------

const fromSlider = () => shown.time_min + (shown.time_star - shown.time_min) * ($("time").value / 1000);

function moveTo(time, slide) {
  const width = shown.time_star - shown.time_min;
  if (slide) $("time").value = width ? Math.round((1000 * (time - shown.time_min)) / width) : 0;
  $("time-shown").textContent = seconds(time);
  const { x, y } = scales(shown);
  $("chosen")?.setAttribute("cx", x(time));
  $("chosen")?.setAttribute("cy", y(energyAt(shown, time)));
  const key = `${shown.job} ${time} ${shown.points.length}`;
  if (key !== drawn) {
    drawn = key;
    askPlan(time);
  }
}

async function askPlan(time) {
  asking?.abort();
  asking = new AbortController();
  try {
    const facts = await ask(`frontier/${encodeURIComponent(shown.job)}?time=${time}`, asking.signal);
    if (facts.plan && facts.job === chosen) showPlan(facts.plan);
  } catch (error) {
    if (error.name !== "AbortError") drawn = "";
  }
}

function showPlan(plan) {
  let text = `${seconds(plan.time)}, ${joules(plan.energy)}`;
  if (plan.saved !== null) {
    text += `: ${less(plan.saved)} than everything at its highest frequency, ${slower(plan.slowdown)}`;
  }
  $("saved").textContent = `${shown.simulated ? "Simulated: " : ""}${text}.`;
  $("hint").textContent = plan.nominal
    ? "These plans came without a profile: durations are nominal and show the order only."
    : "F forward, B backward (I, W: its halves), R recompute, with the microbatch; blank is waiting.";
  drawTimeline(plan);
}

const colour = (part) => {
  const at = Math.max(0, Math.min(1, part)) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  const mixed = RAMP[low].map((value, i) => Math.round(value + (RAMP[low + 1][i] - value) * (at - low)));
  return `rgb(${mixed.join(",")})`;
};

function drawTimeline(plan) {
  const ranks = [...new Set(plan.timeline.map((bar) => bar[0]))].sort((a, b) => a - b);
  const row = new Map(ranks.map((rank, index) => [rank, index]));
  const frequencies = plan.timeline.map((bar) => bar[6]);
  const lowest = Math.min(...frequencies), highest = Math.max(...frequencies);
  const canvas = $("timeline"), height = ranks.length > 24 ? 14 : 26, left = 62, scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * scale;
  canvas.height = (ranks.length * height + 4) * scale;
  canvas.style.height = `${ranks.length * height + 4}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const x = (time) => left + (time / plan.time) * (width - left - 1);
  pen.fillStyle = getComputedStyle(document.body).color;
  for (const rank of ranks) pen.fillText(`rank ${rank}`, 0, row.get(rank) * height + height / 2 + 1);
  pen.textAlign = "center";
  for (const [rank, kind, , microbatch, start, end, frequency] of plan.timeline) {
    const top = row.get(rank) * height + 2, wide = x(end) - x(start);
    pen.fillStyle = colour(highest > lowest ? (frequency - lowest) / (highest - lowest) : 1);
    pen.fillRect(x(start), top, Math.max(0.5, wide - (wide > 3 ? 1 : 0)), height - 3);
    if (wide > 22 && height > 20) {
      pen.fillStyle = "#fff";
      const letter = { "backward-input": "I", "backward-weight": "W" }[kind] ?? kind[0].toUpperCase();
      pen.fillText(`${letter}${microbatch}`, x(start) + wide / 2, top + height / 2 - 1);
    }
  }
  canvas.dataset.bars = plan.timeline.length;
  canvas.dataset.time = plan.time;
  canvas.dataset.frequencies = [...new Set(frequencies)].sort((a, b) => a - b).join(" ");
  $("slowest").textContent = `${lowest} MHz`;
  $("fastest").textContent = `${highest} MHz`;
  $("ramp").style.background = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c.join(",")})`).join(", ")})`;
}

// -- looking -----------------------------------------------------------------------------------------------------------

async function look() {
  try {
    const jobs = await ask(`jobs?latest=${MOST}`);
    if (chosen === null && jobs.length) chosen = jobs[jobs.length - 1].job;
    showJobs(jobs);
    if (chosen !== null) showDetail(await ask(`frontier/${encodeURIComponent(chosen)}`));
    $("trouble").hidden = true;
  } catch (error) {
    $("trouble").hidden = !$("door").hidden;
    $("trouble").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  }
  document.body.dataset.looked = Date.now();
}

async function introduce() {
  try {
    const info = await ask("info");
    $("server").textContent = `version ${info.version} · ${info.scheduler}`;
  } catch {
    $("server").textContent = "";
  }
}

$("time").addEventListener("input", () => {
  wanted = fromSlider();
  moveTo(wanted, false);
});
$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  introduce();
  look();
});
addEventListener("resize", () => { drawn = ""; if (shown?.points.length) moveTo(wanted ?? shown.played ?? shown.time_min, false); });
setInterval(() => { if (!document.hidden) look(); }, EVERY);
introduce();
look();
