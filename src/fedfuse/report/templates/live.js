"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, name) => { const e = document.createElement(tag); if (text != null) e.textContent = text; if (name) e.className = name; return e; };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (v) => Math.abs(v) >= 1e6 ? (v / 1e6).toPrecision(3) + " M" : String(+v.toPrecision(3));

  function heat(h) {
    $("heat-card").hidden = !h;
    if (!h) return;
    const bytes = Uint8Array.from(atob(h.heat), (c) => c.charCodeAt(0)), n = h.n, canvas = $("heat"), image = new ImageData(n, n);
    const stops = [0, 1, 2, 3, 4].map((i) => css("--h" + i).match(/[0-9a-f]{2}/gi).map((x) => parseInt(x, 16)));
    for (let i = 0, at = 0; i < n; i++) for (let j = 0; j <= i; j++, at++) {
      const t = 4 * bytes[at] / 255, k = Math.min(3, Math.floor(t)), c = stops[k].map((v, l) => v + (t - k) * (stops[k + 1][l] - v));
      [4 * (i * n + j), 4 * (j * n + i)].forEach((p) => { image.data.set(c, p); image.data[p + 3] = 255; });
    }
    canvas.width = canvas.height = n; canvas.style.imageRendering = "pixelated";
    canvas.getContext("2d").putImageData(image, 0, 0);
    $("top").textContent = h.top ? short(h.top) + " apart or more, after round " + h.round : "all the same";
  }

  function show(state) {
    const one = state.runs.length === 1, run = state.runs[0], done = state.runs.filter((r) => r.state === "finished").length;
    const what = one ? run.name + " is " + run.state : done + " of " + state.runs.length + " runs are finished";
    if ($("what").textContent !== what) $("what").textContent = what;
    $("note").replaceChildren();
    if (state.finished) { const a = make("a", "Open the report"); a.href = "report.html"; $("note").append(a); }
    else if (one && run.silent > 60) $("note").textContent = "Nothing was written for " + run.silent + " seconds: has it stopped?";
    $("facts").replaceChildren(...(one ? run.facts : []).map(([name, value]) => { const d = make("div"), dd = make("dd"); dd.append(make("b", value)); d.append(make("dt", name), dd); return d; }));
    $("live").hidden = !one; $("runs").hidden = one;
    if (one) { if ($("curves").innerHTML !== state.charts) $("curves").innerHTML = state.charts; heat(state.heat); }
    else $("runs").querySelector("tbody").replaceChildren(...state.runs.map((r) => { const row = make("tr"), head = make("th", r.name); head.scope = "row"; row.append(head, make("td", r.state), make("td", r.facts.map(([n, v]) => n + " " + v).join(", "))); return row; }));
  }

  let failures = 0;
  async function look() {
    let finished = false;
    try {
      const reply = await fetch("state.json");
      if (!reply.ok) throw new Error(reply.status);
      const state = await reply.json();
      failures = 0; finished = state.finished; show(state);
    } catch (e) { if (++failures === 3) $("note").textContent = "fedfuse watch does not answer any more."; }
    if (!finished && failures < 30) setTimeout(look, 1000);
  }
  look();
})();
