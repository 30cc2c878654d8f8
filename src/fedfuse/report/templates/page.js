"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const tip = $("tip");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const redraws = [];
  const tone = (group) => group ? "g" + (group - 1) % data.colours : "between";
  const colour = (group) => css(group ? "--c" + (group - 1) % data.colours : "--soft");
  const named = (group) => group ? "group " + group : "in no group";

  // light and dark
  const themes = ["auto", "light", "dark"], button = $("theme");
  const theme = () => document.documentElement.dataset.theme || "auto";
  const show = () => { button.textContent = "Theme: " + theme(); redraws.forEach((draw) => draw()); };
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    try { if (next === "auto") localStorage.removeItem("fedfuse-theme"); else localStorage.setItem("fedfuse-theme", next); } catch (e) { /* a page from disk may have no storage */ }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

  // one tooltip for everything; it is a live region, so that it is also read aloud
  function say(text, x, y) {
    tip.textContent = text; tip.hidden = false;
    const box = tip.getBoundingClientRect(), left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
    tip.style.left = Math.max(6, Math.min(left, innerWidth - box.width - 6)) + "px";
    tip.style.top = Math.max(6, Math.min(y - box.height - 10, innerHeight - box.height - 6)) + "px";
  }
  const hush = () => { tip.hidden = true; };
  addEventListener("keydown", (e) => { if (e.key === "Escape") hush(); });
  const number = (v, percent) => v == null ? "–" : percent ? (100 * v).toFixed(1) + " %" : Math.abs(v) >= 1e6 ? v.toExponential(2) : String(+v.toPrecision(4));

  // charts: the nearest x is read off
  document.querySelectorAll("[data-readout]").forEach((plot) => {
    const r = JSON.parse(plot.dataset.readout);
    let at = -1;
    const line = plot.appendChild(document.createElement("span"));
    line.className = "cursor"; line.hidden = true;
    const place = (x) => (x - r.low) / (r.high - r.low);
    function read(i, y) {
      at = Math.max(0, Math.min(r.x.length - 1, i));
      const box = plot.getBoundingClientRect(), x = place(r.x[at]);
      line.hidden = false; line.style.left = 100 * x + "%";
      const d = r.devices ? r.devices[at] : -1;
      const head = r.devices ? data.names[d] + " · " + named(data.groups[d]) : "round " + r.x[at];
      say([head, ...r.series.map((s) => s.name + ": " + number(s.y[at], r.percent))].join("\n"), box.left + x * box.width, y ?? box.top + 24);
    }
    const stop = () => { line.hidden = true; hush(); };
    plot.addEventListener("pointermove", (e) => {
      const box = plot.getBoundingClientRect(), x = r.low + (e.clientX - box.left) / box.width * (r.high - r.low);
      let best = 0;
      r.x.forEach((v, i) => { if (Math.abs(v - x) < Math.abs(r.x[best] - x)) best = i; });
      read(best, e.clientY);
    });
    plot.addEventListener("pointerleave", stop);
    plot.addEventListener("blur", stop);
    plot.addEventListener("keydown", (e) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 }[e.key];
      if (move) { e.preventDefault(); read(at < 0 ? (move > 0 ? 0 : r.x.length - 1) : at + move); }
    });
  });

  // pairs: a heat map and a map, both moved by one slider
  if (data.pairs) {
    const p = data.pairs, n = p.cells.length, m = p.devices.length, half = n * (n + 1) / 2;
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const heat = bytes(p.heat), places = new Uint16Array(bytes(p.places).buffer);
    const canvas = $("heat"), map = $("map"), slider = $("round"), where = $("where");
    const group = (k) => data.groups[p.devices[k]];
    let frame = p.rounds.length - 1, cell = null;

    function ramp() {
      const stops = [0, 1, 2, 3, 4].map((i) => css("--h" + i).match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16)));
      return Array.from({ length: 256 }, (_, v) => {
        const t = 4 * v / 255, i = Math.min(3, Math.floor(t)), f = t - i;
        return stops[i].map((c, j) => c + f * (stops[i + 1][j] - c));
      });
    }
    const level = (i, j) => heat[frame * half + (i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i)];
    const EDGE = 0.022;
    function drawHeat() {
      const size = Math.round(canvas.clientWidth * Math.min(devicePixelRatio, 2)) || 600;
      canvas.width = canvas.height = size;
      const g = canvas.getContext("2d"), colours = ramp(), image = new ImageData(n, n);
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
        const c = colours[level(i, j)], at = 4 * (i * n + j);
        image.data[at] = c[0]; image.data[at + 1] = c[1]; image.data[at + 2] = c[2]; image.data[at + 3] = 255;
      }
      const small = document.createElement("canvas");
      small.width = small.height = n;
      small.getContext("2d").putImageData(image, 0, 0);
      const edge = EDGE * size, side = size - edge;
      g.clearRect(0, 0, size, size);
      g.imageSmoothingEnabled = n > side;
      g.drawImage(small, edge, edge, side, side);
      for (let k = 0; k < m;) {  // a stripe in the colour of each group, and a line where the next one begins
        let end = k; while (end < m && group(end) === group(k)) end++;
        const from = edge + side * k / m, long = side * (end - k) / m;
        g.fillStyle = colour(group(k));
        g.fillRect(from, 0, Math.max(1, long - 1), edge * 0.72); g.fillRect(0, from, edge * 0.72, Math.max(1, long - 1));
        k = end;
      }
      if (cell) {
        const s = side / n;
        g.strokeStyle = css("--c1"); g.lineWidth = Math.max(2, size / 300);
        g.strokeRect(edge + cell[1] * s - 1, edge + cell[0] * s - 1, s + 2, s + 2);
      }
    }
    const span = (i) => {
      const a = p.cells[i], b = (i + 1 < n ? p.cells[i + 1] : m) - 1;
      return (a === b ? data.names[p.devices[a]] : data.names[p.devices[a]] + " … " + data.names[p.devices[b]]) + " (" + named(group(a)) + ")";
    };
    function tellCell(i, j, x, y) {
      cell = [i, j]; drawHeat();
      const v = level(i, j), top = p.tops[frame];
      say(span(i) + "\n" + span(j) + "\ndistance " + (v === 255 ? "at least " : "") + number(top * v / 255), x, y);
    }
    canvas.addEventListener("pointermove", (e) => {
      const box = canvas.getBoundingClientRect(), f = (v) => Math.floor((v - EDGE) / (1 - EDGE) * n);
      const i = f((e.clientY - box.top) / box.height), j = f((e.clientX - box.left) / box.width);
      if (i >= 0 && j >= 0 && i < n && j < n) tellCell(i, j, e.clientX, e.clientY); else { cell = null; hush(); drawHeat(); }
    });
    const leave = () => { cell = null; hush(); drawHeat(); };
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("keydown", (e) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
      if (!move) return;
      e.preventDefault();
      const [i, j] = cell ? [cell[0] + move[0], cell[1] + move[1]] : [0, 0].map((v) => v);
      const a = Math.max(0, Math.min(n - 1, i)), b = Math.max(0, Math.min(n - 1, j)), box = canvas.getBoundingClientRect();
      tellCell(a, b, box.left + box.width * (EDGE + (1 - EDGE) * (b + .5) / n), box.top + box.height * (EDGE + (1 - EDGE) * (a + .5) / n));
    });

    // the map; devices at one point are spread in a spiral
    const radius = m > 400 ? 1.5 : m > 100 ? 2.4 : 3.4;
    const circles = p.devices.map((d, k) => {
      const c = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      c.setAttribute("r", radius); c.setAttribute("class", tone(group(k)));
      return map.appendChild(c);
    });
    const members = new Map();
    p.devices.forEach((d, k) => { members.set(group(k), [...(members.get(group(k)) || []), k]); });
    const marks = members.size > 12 ? [] : [...members].map(([c, who]) => {
      const t = document.createElementNS("http://www.w3.org/2000/svg", "text");
      t.textContent = c || "";
      return [map.appendChild(t), who];
    });
    let spots = [], chosen = -1;
    function drawMap() {
      const seen = new Map();
      spots = circles.map((c, k) => {
        const at = 2 * (frame * m + k), x = places[at] / 32767 - 1, y = places[at + 1] / 32767 - 1;
        const key = Math.round(40 * x) + "," + Math.round(40 * y), turn = seen.get(key) || 0;
        seen.set(key, turn + 1);
        const r = 1.15 * radius * Math.sqrt(turn), angle = 2.39996 * turn;
        return [88 * x + r * Math.cos(angle), -88 * y + r * Math.sin(angle)];
      });
      circles.forEach((c, k) => { c.setAttribute("cx", spots[k][0].toFixed(2)); c.setAttribute("cy", spots[k][1].toFixed(2)); });
      marks.forEach(([t, who]) => {  // a group's number stands above it
        t.setAttribute("x", who.reduce((sum, k) => sum + spots[k][0], 0) / who.length);
        t.setAttribute("y", Math.max(-112, Math.min(...who.map((k) => spots[k][1])) - 9));
      });
    }
    function tellDevice(k, x, y) {
      if (chosen >= 0) circles[chosen].classList.remove("on");
      chosen = k; circles[k].classList.add("on");
      const box = map.getBoundingClientRect();
      say(data.names[p.devices[k]] + "\n" + named(group(k)), x ?? box.left + box.width * (spots[k][0] + 120) / 240, y ?? box.top + box.height * (spots[k][1] + 120) / 240);
    }
    const away = () => { if (chosen >= 0) circles[chosen].classList.remove("on"); chosen = -1; hush(); };
    map.addEventListener("pointermove", (e) => {
      const box = map.getBoundingClientRect(), x = (e.clientX - box.left) / box.width * 240 - 120, y = (e.clientY - box.top) / box.height * 240 - 120;
      let best = -1, least = 64;
      spots.forEach(([a, b], k) => { const d = (a - x) ** 2 + (b - y) ** 2; if (d < least) { least = d; best = k; } });
      if (best < 0) away(); else tellDevice(best, e.clientX, e.clientY);
    });
    map.addEventListener("pointerleave", away);
    map.addEventListener("blur", away);
    map.addEventListener("keydown", (e) => {
      const move = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[e.key];
      if (move) { e.preventDefault(); tellDevice((chosen + move + m) % m); }
    });

    function go(to) {
      frame = to; slider.value = to;
      const groups = p.groups[to] === 1 ? "1 group" : p.groups[to] + " groups";
      const text = "After round " + p.rounds[to] + (p.stages[to] ? ", " + p.stages[to] : "") + ": " + groups;
      where.textContent = text; slider.setAttribute("aria-valuetext", text);
      $("top").textContent = p.tops[to] ? number(p.tops[to]) + " apart or more" : "all the same";
      drawHeat(); drawMap();
    }
    slider.addEventListener("input", () => { stop(); go(+slider.value); });
    const play = $("play");
    let timer = 0;
    function stop() { clearInterval(timer); timer = 0; play.textContent = "▶ Play"; play.setAttribute("aria-label", "Play the rounds"); }
    play.addEventListener("click", () => {
      if (timer) { stop(); return; }
      play.textContent = "❚❚ Pause"; play.setAttribute("aria-label", "Pause");
      go(frame === p.rounds.length - 1 ? 0 : frame);
      timer = setInterval(() => { if (frame < p.rounds.length - 1) go(frame + 1); else stop(); }, 700);
    });
    redraws.push(drawHeat);
    new ResizeObserver(drawHeat).observe(canvas.parentElement);
    addEventListener("beforeprint", drawHeat);
    go(frame);
  }

  // the table of devices: find and sort
  const table = $("devices");
  if (table) {
    const body = table.tBodies[0], rows = [...body.rows], find = $("find"), found = $("found");
    find.addEventListener("input", () => {
      const word = find.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row) => { row.hidden = !row.cells[0].textContent.toLowerCase().includes(word); shown += !row.hidden; });
      found.textContent = word ? shown + " of " + rows.length : "";
    });
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.v;
      const order = (x, y) => column === 0 ? x.cells[0].textContent.localeCompare(y.cells[0].textContent, undefined, { numeric: true }) : (key(x) === "") - (key(y) === "") || key(x) - key(y);
      rows.sort((x, y) => up ? order(x, y) : order(y, x)).forEach((row) => body.append(row));
    }));
  }
  show();
})();
