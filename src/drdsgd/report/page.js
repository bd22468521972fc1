'use strict';
// One long file: the report is one page without requests, and its script is copied into it as it is.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const {groups, runs, pairs} = data;
  const $ = id => document.getElementById(id);

  // Everything that a reader can change. Plots are functions of it: `update` changes it and draws everything again.
  const state = {kind: 'consensus', x: 'rounds', visible: new Set(data.visible), run: data.start, round: Infinity, device: null};

  let due = false;
  function update(change) {
    Object.assign(state, change);
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(); });
  }

  // ------------------------------------------------------------------ elements
  // Texts only ever become text nodes, so that no name can be markup.

  const space = document.querySelector('svg').namespaceURI;

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(space, tag), attributes, children);
  const html = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

  const colour = g => data.colours[g % data.colours.length];
  const dash = g => data.dashes[g % data.dashes.length];
  const key = g => svg('svg', {class: 'key', width: 22, height: 8, 'aria-hidden': 'true'},
    svg('line', {x1: 0, y1: 4, x2: 22, y2: 4, stroke: colour(g), 'stroke-width': 3, 'stroke-dasharray': dash(g)}));

  // ------------------------------------------------------------------- numbers

  const minus = text => text.replace('-', '−');
  const fixed = (value, digits = 1) => {
    if (value === null || value === undefined) return '—';
    const text = value.toFixed(digits);
    return Number(text) === 0 ? text.replace('-', '') : minus(text);  // no −0.0
  };
  // as in the tables: a small error gets a second digit
  function estimate(mean, error) {
    if (mean === null) return '—';
    const digits = error > 0 && error < 0.095 ? 2 : 1;
    return fixed(mean, digits) + (error === null ? '' : ` ± ${fixed(error, digits)}`);
  }
  const short = value => value === null || value === undefined ? '—'
    : value !== 0 && (Math.abs(value) < 0.01 || Math.abs(value) >= 1e5) ? minus(value.toExponential(1)) : minus(String(+value.toPrecision(3)));
  const times = share => `${fixed(share, share < 0.95 ? 2 : 1)} ×`;
  function large(value) {
    for (const [size, unit] of [[1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e3, ' k']]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
    }
    return String(value);
  }
  const xText = x => state.x === 'rounds' ? `round ${x}` : `${large(x)} floats`;
  // a number stays on one line with its error and unit
  const together = text => text.replace(/ (?=[±%×])|(?<=±) /g, '\u00a0');
  const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;

  function ticks(low, high, count) {
    const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
    const step = size * [1, 2, 2.5, 5, 10].find(m => m * size >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
    return found;
  }
  function powers(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), found = [];
    for (let e = first; e <= last; e++) for (const m of last - first > 3 ? [1] : [1, 2, 5]) found.push(m * 10 ** e);
    const within = found.filter(v => v >= low && v <= high), every = Math.ceil(within.length / 6);
    // with fewer than three of these marks, an even scale is clearer
    return within.length < 3 ? ticks(low, high, 4) : within.filter((_, i) => i % every === 0);
  }
  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
    return [low, high];
  }
  const quantile = (sorted, q) => sorted[Math.round(q * (sorted.length - 1))];

  // ----------------------------------------------------------------- selections

  const shown = () => groups.map((group, i) => [i, group]).filter(([i]) => state.visible.has(i));
  const run = () => runs[state.run];
  const runName = r => groups.length > 1 ? `${groups[r.group].label}, seed ${r.seed}` : `seed ${r.seed}`;
  // the last evaluation that a run has up to the chosen round; local models may be evaluated less often
  function frame(r) {
    let f = 0;
    while (f + 1 < r.rounds.length && r.rounds[f + 1] <= state.round) f++;
    while (f > 0 && r[state.kind][f] === null) f--;
    return f;
  }
  const place = (r, device) => r.devices.indexOf(device);
  // a device's number and, where it has one, its name
  const called = (r, device) => r.names && place(r, device) >= 0 ? `${device} (${r.names[place(r, device)]})` : String(device);
  // runs in which a device of the shown run is the same device: same seed, same problem
  const mates = () => runs.filter((r, i) => pairs[i] === pairs[state.run] && state.visible.has(r.group) && place(r, state.device) >= 0);
  function worstOf(r, f) {
    const values = r[state.kind][f];
    return values.reduce((best, v, k) => v < values[best] ? k : best, 0);
  }
  const equallyBadlyOff = (r, f) => r[state.kind][f].filter(v => v === r[state.kind][f][worstOf(r, f)]).length;
  function follow(device, index = state.run) {
    const same = state.device === device && pairs[index] === pairs[state.run];
    update({run: index, device: same ? null : device});
  }

  // ------------------------------------------------------------------- tooltip

  function showTip(x, y, ...lines) {
    const tip = $('tip');
    tip.replaceChildren(...lines.map(line => html('div', {}, ...[line].flat())));
    tip.hidden = false;
    const {width, height} = tip.getBoundingClientRect(), room = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, x + 16 + width > room ? Math.min(x - width - 16, room - width - 4) : x + 16)}px`;
    tip.style.top = `${Math.max(4, y + 16 + height > innerHeight ? y - height - 16 : y + 16)}px`;
  }
  const hideTip = () => { $('tip').hidden = true; };

  // ------------------------------------------------------------------ line chart

  /** Lines with bands over a common x axis.
   *
   * series: [{label, x: [], y: [], error: [] or null, colour, dash, kind: '' | 'device' | 'followed', device}]
   * marks: [{x, y, colour, cross, text}]; areas: [{x, low, high, colour}]; log: whether y is logarithmic;
   * within: limits of y; least: span of y at least; yText: how to say a y; cursor: an x to mark.
   */
  function lineChart(holder, spec) {
    const width = Math.max(260, holder.clientWidth), height = spec.height || 250;
    const box = {left: 46, right: width - 14, top: 10, bottom: height - 40};
    const fits = spec.log ? v => v !== null && v > 0 : v => v !== null;
    const xs = spec.series.flatMap(s => s.x), ys = [];
    for (const s of spec.series) {
      s.y.forEach((y, i) => {
        if (!fits(y)) return;
        ys.push(y);
        const e = s.error ? s.error[i] : null;
        if (e) ys.push(y + e, spec.log ? Math.max(y - e, y / 3) : y - e);
      });
    }
    for (const a of spec.areas || []) ys.push(...a.low.filter(fits), ...a.high.filter(fits));
    if (!ys.length) return holder.replaceChildren(html('p', {class: 'soft'}, 'Nothing to draw.'));

    let [low, high] = extent(ys);
    if (spec.log) { low /= 1.3; high *= 1.3; }
    else {
      // values that hardly change must not fill the whole plot
      const pad = Math.max((high - low) * 0.06, (spec.least - (high - low)) / 2);
      low = Math.max(low - pad, spec.within[0]); high = Math.min(high + pad, spec.within[1]);
    }
    const most = extent(xs)[1] || 1;
    const X = v => box.left + v / most * (box.right - box.left);
    const scaled = spec.log ? Math.log : v => v;
    const Y = v => box.bottom - (scaled(Math.max(v, spec.log ? low : -Infinity)) - scaled(low)) / (scaled(high) - scaled(low)) * (box.bottom - box.top);
    const path = (x, y) => x.map((v, i) => fits(y[i]) ? [X(v), Y(y[i])] : null).filter(p => p)
      .map(([a, b], i) => `${i ? 'L' : 'M'}${a.toFixed(1)} ${b.toFixed(1)}`).join('');
    const area = (x, bottom, top) => `${path(x, top)}${path([...x].reverse(), [...bottom].reverse()).replace('M', 'L')}Z`;

    const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': spec.says});
    for (const v of spec.log ? powers(low, high) : ticks(low, high, 5)) {
      root.append(svg('line', {class: 'axis', x1: box.left, x2: box.right, y1: Y(v), y2: Y(v)}),
        svg('text', {class: 'tick', x: box.left - 8, y: Y(v) + 4, 'text-anchor': 'end'}, spec.log ? short(v) : minus(String(v))));
    }
    for (const v of ticks(0, most, Math.max(3, Math.floor(width / 110)))) {
      root.append(svg('text', {class: 'tick', x: X(v), y: box.bottom + 18, 'text-anchor': 'middle'}, large(v)));
    }
    root.append(svg('text', {class: 'tick', x: box.right, y: height - 4, 'text-anchor': 'end'},
      state.x === 'rounds' ? 'rounds' : 'floats sent by all devices'));

    for (const a of spec.areas || []) root.append(svg('path', {class: 'band', fill: a.colour, d: area(a.x, a.low, a.high)}));
    for (const s of spec.series) {
      // runs only drop out over time, so the values with an error are one stretch from the start
      const known = s.error ? s.x.map((_, i) => i).filter(i => s.error[i] !== null && fits(s.y[i])) : [];
      if (known.length) {
        const bottom = known.map(i => spec.log ? Math.max(s.y[i] - s.error[i], low) : s.y[i] - s.error[i]);
        root.append(svg('path', {class: 'band', fill: s.colour, d: area(known.map(i => s.x[i]), bottom, known.map(i => s.y[i] + s.error[i]))}));
      }
    }
    for (const s of spec.series) {
      root.append(svg('path', {class: `line ${s.kind || ''}`, d: path(s.x, s.y), stroke: s.kind === 'device' ? null : s.colour,
        'stroke-width': s.kind ? null : 2.2, 'stroke-dasharray': s.kind ? null : s.dash, 'data-name': s.label}));
      if (s.x.length === 1 && fits(s.y[0])) root.append(svg('circle', {cx: X(s.x[0]), cy: Y(s.y[0]), r: 3, fill: s.colour}));
    }
    for (const m of spec.marks || []) {
      if (!fits(m.y)) continue;
      const [a, b] = [X(m.x), Y(m.y)];
      root.append(m.cross
        ? svg('path', {class: 'mark', d: `M${a - 5} ${b - 5}L${a + 5} ${b + 5}M${a - 5} ${b + 5}L${a + 5} ${b - 5}`, stroke: m.colour, 'stroke-width': 3},
          svg('title', {}, m.text))
        : svg('circle', {class: 'mark', cx: a, cy: b, r: 5, fill: 'none', stroke: m.colour, 'stroke-width': 2}, svg('title', {}, m.text)));
    }
    if (spec.cursor !== null && spec.cursor < most) {
      root.append(svg('line', {class: 'cursor', x1: X(spec.cursor), x2: X(spec.cursor), y1: box.top, y2: box.bottom}));
    }
    const pointer = svg('g');
    root.append(pointer);

    // under the pointer: the nearest line of a device, else all lines at the nearest x
    function nearest(event) {
      const at = root.getBoundingClientRect(), zoom = width / at.width;
      const px = (event.clientX - at.left) * zoom, py = (event.clientY - at.top) * zoom;
      const found = [];
      for (const s of spec.series) {
        let best = null;
        s.x.forEach((x, i) => {
          if (!fits(s.y[i])) return;
          const far = spec.devices ? Math.hypot(X(x) - px, Y(s.y[i]) - py) : Math.abs(X(x) - px);
          if (!best || far < best.far) best = {far, i, s};
        });
        if (best) found.push(best);
      }
      found.sort((a, b) => a.far - b.far);
      // at this x only: a line that ends earlier has no value there
      return spec.devices ? found.slice(0, 1) : found.filter(each => Math.abs(each.far - found[0].far) < 2).slice(0, 12);
    }
    root.addEventListener('pointermove', event => {
      const found = nearest(event);
      if (!found.length) return;
      const x = found[0].s.x[found[0].i];
      pointer.replaceChildren(svg('line', {class: 'axis', x1: X(x), x2: X(x), y1: box.top, y2: box.bottom}),
        ...found.map(({s, i}) => svg('circle', {cx: X(s.x[i]), cy: Y(s.y[i]), r: 4, fill: s.colour})));
      showTip(event.clientX, event.clientY, html('b', {}, xText(x)), ...found.map(({s, i}) =>
        [...(s.group === undefined ? [] : [key(s.group)]), html('span', {}, `${s.label}: ${spec.yText(s.y[i], s.error ? s.error[i] : null)}${s.note ? s.note(i) : ''}`)]));
    });
    root.addEventListener('pointerleave', () => { pointer.replaceChildren(); hideTip(); });
    if (spec.devices) {
      root.addEventListener('click', event => {
        const [found] = nearest(event);
        if (found && found.far < 25 && found.s.device !== undefined) follow(found.s.device);
      });
    }
    holder.replaceChildren(root);
  }

  /** The curve of a followed device in each run that has it, under the method's colour. */
  const followedLines = value => state.device === null ? [] : mates().filter(r => value(r)).map(r => {
    const k = place(r, state.device);
    return {label: `device ${state.device}, ${runName(r)}`, x: r[state.x], y: value(r).map(row => row && row[k]), error: null,
      colour: colour(r.group), kind: 'followed', group: r.group};
  });
  const cursor = () => {
    if (!runs.length) return null;
    const r = run(), f = frame(r);
    return f === r.rounds.length - 1 ? null : r[state.x][f];
  };
  const accuracyText = (y, error) => `${estimate(y, error)} %`;

  // ---------------------------------------------------------------------- curves

  function curve(measure) {
    const unit = measure === 'stdev' ? ' points' : ' %';
    return {
      draw(holder, says) {
        const series = shown().map(([g, group]) => ({
          label: group.label, x: group[state.x], y: group[state.kind][measure].mean, error: group[state.kind][measure].error,
          colour: colour(g), dash: dash(g), group: g,
          note: i => group.n[i] < group.runs ? ` (${group.n[i]} of ${plural(group.runs, 'run')})` : '',
        }));
        const marks = shown().flatMap(([g, group]) => group.stops.map(stop => ({
          x: stop[state.x], y: stop[state.kind][measure], colour: colour(g), cross: stop.status === 'diverged',
          text: `${group.label}, seed ${stop.seed}: ${stop.text}`,
        })));
        lineChart(holder, {
          says, marks, cursor: cursor(), within: [0, 100], least: 5, yText: (y, e) => estimate(y, e) + unit,
          series: [...series, ...(measure === 'stdev' ? [] : followedLines(r => r[state.kind]))],
        });
      },
      says() {
        const ends = shown().map(([, group]) => {
          const {mean, error} = group[state.kind][measure], last = mean.length - 1;
          return `${group.label} goes from ${fixed(mean[0])} to ${estimate(mean[last], error[last])}${unit}`;
        });
        return `${data.measures[measure]}, ${state.kind} model: ${listed(ends)}.${followedSays(measure)}`;
      },
      table() {
        return {
          columns: ['method', 'model', 'round', 'floats sent', 'mean', 'standard error', 'runs'],
          rows: shown().flatMap(([, group]) => group.rounds.map((t, i) => [group.label, state.kind, t, group.floats[i],
            group[state.kind][measure].mean[i], group[state.kind][measure].error[i], group.n[i]])),
        };
      },
    };
  }
  const listed = (parts, most = 6) => parts.length > most ? `${parts.slice(0, most).join('; ')}; and ${parts.length - most} more` : parts.join('; ');
  function followedSays(measure) {
    if (state.device === null || measure === 'stdev') return '';
    const ends = mates().map(r => `${fixed(r[state.kind].findLast(row => row)[place(r, state.device)])} % (${runName(r)})`);
    return ends.length ? ` Dotted: device ${state.device}, which ends at ${listed(ends)}.` : '';
  }

  // ----------------------------------------------------------------------- graph

  const mix = (a, b, t) => [1, 3, 5].map(i => Math.round(parseInt(a.slice(i, i + 2), 16) * (1 - t) + parseInt(b.slice(i, i + 2), 16) * t));
  function shade(value, [low, high]) {
    const at = Math.min(1, Math.max(0, (value - low) / (high - low))) * (data.scale.length - 1), i = Math.min(data.scale.length - 2, Math.floor(at));
    return mix(data.scale[i], data.scale[i + 1], at - i);
  }
  const css = rgb => `rgb(${rgb.join(',')})`;
  const ink = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 130 ? '#000' : '#fff';

  // One scale for all rounds and for all methods on the same devices, so that a colour means one accuracy. It begins at
  // the lowest accuracy of the last third of rounds: if it began at zero, all devices would look the same at the end.
  const scales = new Map();
  function colourScale() {
    const name = `${pairs[state.run]} ${state.kind}`;
    if (!scales.has(name)) {
      const [low, high] = extent(runs.filter((_, i) => pairs[i] === pairs[state.run])
        .flatMap(r => r[state.kind].filter(row => row).slice(Math.floor(r.rounds.length * -1 / 3)).flat()));
      const ends = [Math.floor(low / 5) * 5, Math.ceil(high / 5) * 5];
      scales.set(name, ends[0] < ends[1] ? ends : [ends[0] - 5, ends[1] + 5]);
    }
    return scales.get(name);
  }

  function labelsHeld(r, k) {
    const more = r.held[k] - r.labels[k].length;
    return r.labels[k].map(([label, n]) => `${label} (${n}×)`).join(', ') + (more > 0 ? ` and ${more} more` : '');
  }
  const countsAs = share => Math.abs(share - 1) < 0.005 ? 'counts as much as the average device'
    : `counts ${fixed(share, share < 1 ? 2 : 1)} times as much as the average device`;
  /** A device's data, line by line. */
  function facts(r, k, f) {
    return [
      `accuracy ${fixed(r.consensus[f][k])} % consensus, ${r.local[f] ? `${fixed(r.local[f][k])} %` : '—'} local`,
      `${plural(r.samples[k], 'training sample')}, labels ${labelsHeld(r, k)}`,
      ...(r.rho === null ? [] : [plural(r.degree[k], 'neighbour')]),
      r.loss ? `training loss of its own model ${short(r.loss[f][k])}` : 'loss not recorded',
      `weight: ${countsAs(r.share[f][k])}`,
    ];
  }

  const graph = {
    made: '', nodes: [], digits: [], active: 0,
    // the skeleton is made once for a run and a width; after that only colours and sizes change
    make(holder) {
      const r = run(), width = Math.max(260, holder.clientWidth), height = Math.round(Math.min(width * 0.8, 560));
      const name = `${state.run} ${width}`;
      if (this.made === name && holder.firstChild) return;
      this.made = name;
      const [left, right] = extent(r.x), [top, bottom] = extent(r.y);
      const base = Math.max(2.6, Math.min(17, width / (2.9 * Math.sqrt(r.devices.length) + 6))), pad = Math.min(44, 2.2 * base + 14);
      const zoom = Math.min((width - 2 * pad) / (right - left || 1), (height - 2 * pad) / (bottom - top || 1));
      this.base = base;
      this.x = r.x.map(x => width / 2 + (x - (left + right) / 2) * zoom);
      this.y = r.y.map(y => height / 2 - (y - (top + bottom) / 2) * zoom);
      let lines = '';
      for (let i = 0; i < r.links.length; i += 2) {
        const [a, b] = [r.links[i], r.links[i + 1]];
        lines += `M${this.x[a].toFixed(1)} ${this.y[a].toFixed(1)}L${this.x[b].toFixed(1)} ${this.y[b].toFixed(1)}`;
      }
      this.nodes = r.devices.map((device, k) => svg('circle', {class: 'node', id: `node-${device}`, role: 'option', 'data-device': device,
        cx: this.x[k].toFixed(1), cy: this.y[k].toFixed(1)}));
      const room = base >= 8;
      this.digits = room ? r.devices.map((device, k) => svg('text', {class: 'digit', x: this.x[k].toFixed(1), y: this.y[k].toFixed(1),
        'font-size': Math.max(8, base * (device > 99 ? 0.7 : 0.9)).toFixed(1), 'aria-hidden': 'true'}, String(device))) : [];
      this.marks = svg('g', {'aria-hidden': 'true'});
      this.name = svg('text', {class: 'digit worst-name', 'aria-hidden': 'true'}, 'worst off');
      this.list = svg('g', {class: 'nodes', role: 'listbox', tabindex: 0, 'aria-label': 'Devices; arrow keys move, Enter follows, Escape stops'}, ...this.nodes);
      const root = svg('svg', {viewBox: `0 0 ${width} ${height}`},
        svg('path', {class: 'links', d: lines, 'stroke-width': r.devices.length > 200 ? 0.5 : 1.2}), this.list, this.marks, ...this.digits, this.name);
      this.listen();
      holder.replaceChildren(root);
      this.active = worstOf(r, frame(r));
    },
    listen() {
      const at = event => this.nodes.indexOf(event.target);
      this.list.addEventListener('pointerover', event => { if (at(event) >= 0) this.tell(at(event), event.clientX, event.clientY); });
      this.list.addEventListener('pointerout', hideTip);
      this.list.addEventListener('click', event => { if (at(event) >= 0) { this.active = at(event); follow(run().devices[at(event)]); } });
      this.list.addEventListener('focus', () => { if (this.list.matches(':focus-visible')) this.move(this.active); });
      this.list.addEventListener('blur', hideTip);
      this.list.addEventListener('keydown', event => {
        const last = this.nodes.length - 1;
        const to = {ArrowRight: this.active + 1, ArrowDown: this.active + 1, ArrowLeft: this.active - 1, ArrowUp: this.active - 1, Home: 0, End: last}[event.key];
        if (to !== undefined) this.move(Math.min(last, Math.max(0, to)));
        else if (event.key === 'Enter' || event.key === ' ') follow(run().devices[this.active]);
        else return;
        event.preventDefault();
      });
    },
    move(k) {
      this.nodes[this.active].classList.remove('active');
      this.active = k;
      const node = this.nodes[k], box = (node.classList.add('active'), node.getBoundingClientRect());
      this.list.setAttribute('aria-activedescendant', node.id);
      this.tell(k, box.right, box.bottom);
    },
    tell(k, x, y) {
      const r = run(), said = [`device ${called(r, r.devices[k])}`, ...facts(r, k, frame(r))];
      this.nodes[k].setAttribute('aria-label', said.join(', '));
      showTip(x, y, html('b', {}, said[0]), ...said.slice(1));
    },
    draw(holder) {
      this.make(holder);
      const r = run(), f = frame(r), scale = colourScale(), worst = worstOf(r, f);
      r.devices.forEach((device, k) => {
        const fill = shade(r[state.kind][f][k], scale), node = this.nodes[k];
        const size = this.base * Math.sqrt(Math.min(4, Math.max(0.16, r.share[f][k])));
        node.setAttribute('fill', css(fill));
        node.setAttribute('r', size.toFixed(2));
        node.setAttribute('aria-selected', device === state.device);
        if (this.digits[k]) this.digits[k].setAttribute('fill', size < 6 ? 'none' : ink(fill));
      });
      // marked devices are drawn above the others, but the list keeps its order
      const marked = [[worst, 'worst'], [place(r, state.device), 'followed']].filter(([k]) => k >= 0);
      this.marks.replaceChildren(...marked.map(([k, mark]) => svg('circle', {class: `ring ${mark}`, cx: this.x[k], cy: this.y[k],
        r: this.nodes[k].getAttribute('r'), fill: this.nodes[k].getAttribute('fill')})));
      this.name.setAttribute('x', this.x[worst]);
      this.name.setAttribute('y', this.y[worst] - this.base * Math.sqrt(Math.min(4, Math.max(0.16, r.share[f][worst]))) - 11);
      this.legend(holder.parentNode.querySelector('.scales'), scale);
    },
    legend(holder, [low, high]) {
      const circle = share => {
        const size = this.base * Math.sqrt(share), side = 2 * Math.max(size, 3) + 2;
        return svg('svg', {width: side, height: side, 'aria-hidden': 'true'}, svg('circle', {cx: side / 2, cy: side / 2, r: size, fill: 'none', stroke: 'currentColor'}));
      };
      const bar = html('i', {class: 'bar'});
      bar.style.background = `linear-gradient(90deg, ${data.scale.join(', ')})`;
      holder.replaceChildren(html('span', {}, `accuracy ${low} %${low > 0 ? ' or less' : ''}`, bar, `${high} %${high < 100 ? ' or more' : ''}`),
        html('span', {}, 'weight', circle(0.5), '0.5 ×', circle(1), '1 ×', circle(2), '2 × the average'));
    },
    says() {
      const r = run(), f = frame(r), values = r[state.kind][f], worst = worstOf(r, f);
      return `${runName(r)}, after round ${r.rounds[f]}: ${plural(r.size, 'device')}, ${r.rho === null ? 'with a server' : `${plural(r.all_links, 'link')}, rho = ${fixed(r.rho, 3)}`}. `
        + `Device ${called(r, r.devices[worst])}${equallyBadlyOff(r, f) > 1 ? ` (and ${plural(equallyBadlyOff(r, f) - 1, 'other')})` : ''} is worst off with ${fixed(values[worst])} %, the best has ${fixed(extent(values)[1])} %, the average is ${fixed(r.average[state.kind][f])} % (${state.kind} model).`
        + (r.status === 'finished' ? '' : ` This run is not finished: ${r.status}.`);
    },
    table() {
      const r = run(), f = frame(r);
      return {
        columns: ['device', ...(r.names ? ['name'] : []), 'round', 'accuracy consensus', 'accuracy local', 'loss', 'weight / average', 'samples', 'neighbours', 'labels'],
        rows: r.devices.map((device, k) => [device, ...(r.names ? [r.names[k]] : []), r.rounds[f], r.consensus[f][k], r.local[f] && r.local[f][k], r.loss ? r.loss[f][k] : null, r.share[f][k],
          r.samples[k], r.degree[k], labelsHeld(r, k)]),
      };
    },
  };

  /** The followed device, or the worst-off one: its data, and what may explain its accuracy. */
  function card() {
    const r = run(), f = frame(r), worst = worstOf(r, f), followed = place(r, state.device);
    const k = followed >= 0 ? followed : worst, device = r.devices[k], mine = r[state.kind][f][k], average = r.average[state.kind][f];
    const below = average - mine, bold = text => html('b', {}, together(text));
    const items = [];
    const labels = r.labels[k].map(([label]) => label), all = r.per_class[f].filter(v => v !== null);
    items.push(['It holds ', bold(plural(r.samples[k], 'training sample')), ` (average ${fixed(r.mean_samples)}) of ${plural(r.held[k], 'label')}: ${labelsHeld(r, k)}.`]);
    const known = r.labels[k].filter(([label]) => r.per_class[f][label] !== null && r.per_class[f][label] !== undefined);
    if (known.length && all.length) {
      const n = known.reduce((sum, each) => sum + each[1], 0);
      const here = known.reduce((sum, [label, count]) => sum + count * r.per_class[f][label], 0) / n, anywhere = all.reduce((a, b) => a + b, 0) / all.length;
      const its = r.held[k] > 1 ? 'its labels are' : 'its label is';
      const verdict = `${its} ${here < anywhere - 2 ? 'hard' : here > anywhere + 2 ? 'easy' : 'neither hard nor easy'} for the model`;
      items.push(['Over all devices the consensus model is right on ', labels.length > 1 ? 'these labels' : 'this label', ' in ', bold(`${fixed(here)} %`), `, on the average label in ${fixed(anywhere)} %: ${verdict}.`]);
    }
    if (r.rho !== null) items.push(['It has ', bold(plural(r.degree[k], 'neighbour')), ` (average ${fixed(r.mean_degree)}).`]);
    const share = r.share[f][k], loss = r.loss ? `The training loss of its own model is ${short(r.loss[f][k])} (average ${short(r.mean_loss[f])}); in ` : 'In ';
    items.push([`${loss}training it `, bold(countsAs(share)), '.']);
    const others = runs.filter((other, i) => i !== state.run && pairs[i] === pairs[state.run] && place(other, device) >= 0 && state.visible.has(other.group));
    for (const other of others.slice(0, 4)) {
      const g = frame(other);
      items.push([`With ${groups[other.group].label} the same device has `, bold(`${fixed(other[state.kind][g][place(other, device)])} %`), ` after round ${other.rounds[g]}.`]);
    }
    const button = html('button', {type: 'button'}, state.device === device ? 'Stop following' : 'Follow in all plots');
    button.addEventListener('click', () => follow(device));
    const tied = equallyBadlyOff(r, f), lowest = mine === r[state.kind][f][worst];
    const rank = !lowest ? '' : tied > 1 ? `, one of the ${tied} worst off` : ', the worst off';
    $('card').replaceChildren(
      html('h3', {}, `Device ${called(r, device)}${rank}`),
      html('p', {}, bold(`${fixed(mine)} %`), ` of its test samples are classified correctly after round ${r.rounds[f]}`,
        Math.abs(below) < 0.05 ? ', as on average.' : `, ${fixed(Math.abs(below))} points ${below > 0 ? 'below' : 'above'} the average.`),
      html('ul', {}, ...items.map(parts => html('li', {}, ...parts.map(part => typeof part === 'string' ? together(part) : part)))), button);
  }

  // --------------------------------------------------------------- distributions

  const spread = {
    draw(holder, says) {
      const rows = shown().filter(([, group]) => group.spread[state.kind]);
      if (!rows.length) return holder.replaceChildren(html('p', {class: 'soft'}, 'No run has finished.'));
      const width = Math.max(260, holder.clientWidth), each = rows.length > 10 ? 46 : 66, height = rows.length * each + 44;
      const [low, high] = extent(rows.flatMap(([, group]) => group.spread[state.kind].quantiles));
      const ends = [Math.max(0, Math.floor((low - 1) / 5) * 5), Math.min(100, Math.ceil((high + 1) / 5) * 5)];
      const X = v => 12 + (v - ends[0]) / (ends[1] - ends[0] || 1) * (width - 24);
      const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': says});
      for (const v of ticks(...ends, Math.max(4, Math.floor(width / 110)))) {
        root.append(svg('line', {class: 'axis', x1: X(v), x2: X(v), y1: 0, y2: height - 36}),
          svg('text', {class: 'tick', x: X(v), y: height - 20, 'text-anchor': 'middle'}, `${v}`));
      }
      root.append(svg('text', {class: 'tick', x: width - 12, y: height - 4, 'text-anchor': 'end'}, 'accuracy in %'));
      rows.forEach(([g, group], row) => {
        const {quantiles: q, dots} = group.spread[state.kind], top = row * each + 20, half = (each - 26) / 2, middle = top + half;
        root.append(svg('text', {class: 'name', x: 12, y: row * each + 13}, group.label.length > width / 8 ? `${group.label.slice(0, Math.floor(width / 8))}…` : group.label),
          svg('line', {x1: X(q[0]), x2: X(q[100]), y1: middle, y2: middle, stroke: colour(g), 'stroke-width': 1.5}),
          svg('rect', {class: 'box', x: X(q[25]), y: top, width: Math.max(1, X(q[75]) - X(q[25])), height: 2 * half, fill: colour(g), stroke: colour(g)}));
        // a device keeps its height: scatter by number, not at random
        for (const [i, [value, device, seed]] of (dots || q.map(v => [v])).entries()) {
          const dot = svg('circle', {cx: X(value).toFixed(1), cy: (top + 2 * half * ((i * 0.618034) % 1)).toFixed(1), r: dots ? 3.4 : 2, fill: colour(g), 'fill-opacity': 0.65});
          if (dots) { dot.dataset.said = JSON.stringify([g, seed, device, value]); dot.setAttribute('class', 'dot'); }
          root.append(dot);
        }
        root.append(svg('line', {class: 'median', x1: X(q[50]), x2: X(q[50]), y1: top - 2, y2: top + 2 * half + 2}));
        for (const r of state.device === null ? [] : mates().filter(r => r.group === g && r.status === 'finished')) {
          const a = X(r[state.kind].at(-1)[place(r, state.device)]);
          root.append(svg('path', {class: 'followed-mark', fill: colour(g), d: `M${a} ${middle - 9}L${a + 8} ${middle}L${a} ${middle + 9}L${a - 8} ${middle}Z`},
            svg('title', {}, `device ${state.device}, ${runName(r)}`)));
        }
      });
      const said = event => event.target.dataset.said && JSON.parse(event.target.dataset.said);
      root.addEventListener('pointerover', event => {
        const dot = said(event);
        if (dot) showTip(event.clientX, event.clientY, `${groups[dot[0]].label}, seed ${dot[1]}`, `device ${dot[2]}: ${fixed(dot[3])} %`);
      });
      root.addEventListener('pointerout', hideTip);
      root.addEventListener('click', event => {
        const dot = said(event), index = dot ? runs.findIndex(r => r.group === dot[0] && r.seed === dot[1]) : -1;
        if (index >= 0) follow(dot[2], index);
      });
      holder.replaceChildren(root);
    },
    says() {
      const parts = shown().filter(([, group]) => group.spread[state.kind]).map(([, group]) => {
        const {quantiles: q, n} = group.spread[state.kind];
        return `${group.label} (${plural(n, 'device')} in all): from ${fixed(q[0])} to ${fixed(q[100])} %, half of them between ${fixed(q[25])} and ${fixed(q[75])} %`;
      });
      const many = shown().some(([, group]) => group.spread[state.kind] && !group.spread[state.kind].dots) ? ' Where devices are many, a dot is a percentile of them.' : '';
      const mark = state.device === null ? '' : ` The diamond is device ${state.device}.`;
      return `${parts.length ? `${listed(parts)}.` : 'No run has finished.'}${many}${mark}`;
    },
    table() {
      const rows = shown().filter(([, group]) => group.spread[state.kind]);
      return rows.every(([, group]) => group.spread[state.kind].dots)
        ? {columns: ['method', 'model', 'seed', 'device', 'accuracy'],
          rows: rows.flatMap(([, group]) => group.spread[state.kind].dots.map(([value, device, seed]) => [group.label, state.kind, seed, device, value]))}
        : {columns: ['method', 'model', 'percentile', 'accuracy'],
          rows: rows.flatMap(([, group]) => group.spread[state.kind].quantiles.map((value, i) => [group.label, state.kind, i, value]))};
    },
  };

  // ----------------------------------------------------------------------- bars

  const classes = {
    draw(holder, says) {
      const rows = shown().filter(([, group]) => group.classes), C = Math.max(0, ...rows.map(([, group]) => group.classes.length));
      if (!C) return holder.replaceChildren(html('p', {class: 'soft'}, 'No run has finished.'));
      const width = Math.max(260, holder.clientWidth), height = 250, bottom = height - 40, left = 40;
      const Y = v => bottom - v / 100 * (bottom - 10), step = (width - left - 8) / C, bar = Math.min(26, step * 0.8 / rows.length);
      const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': says});
      for (const v of [0, 25, 50, 75, 100]) {
        root.append(svg('line', {class: 'axis', x1: left, x2: width - 8, y1: Y(v), y2: Y(v)}), svg('text', {class: 'tick', x: left - 8, y: Y(v) + 4, 'text-anchor': 'end'}, `${v}`));
      }
      const r = run(), k = place(r, state.device), held = k < 0 ? [] : r.labels[k].map(([label]) => label);
      for (let c = 0; c < C; c++) {
        const middle = left + (c + 0.5) * step;
        rows.forEach(([g, group], i) => {
          const [mean, error] = group.classes[c] || [null, null], x = middle + (i - rows.length / 2) * bar;
          if (mean === null) return;
          root.append(svg('rect', {class: 'bar-of-class', x: x + bar * 0.06, width: bar * 0.88, y: Y(mean), height: bottom - Y(mean), fill: colour(g)},
            svg('title', {}, `label ${c}, ${group.label}: ${estimate(mean, error)} %`)));
          if (error) root.append(svg('line', {class: 'whisker', x1: x + bar / 2, x2: x + bar / 2, y1: Y(Math.min(100, mean + error)), y2: Y(Math.max(0, mean - error))}));
        });
        if (C <= 30 || c % Math.ceil(C / 30) === 0) root.append(svg('text', {class: `tick${held.includes(c) ? ' held' : ''}`, x: middle, y: bottom + 17, 'text-anchor': 'middle'}, `${c}`));
      }
      root.append(svg('text', {class: 'tick', x: width - 8, y: height - 4, 'text-anchor': 'end'}, 'label'));
      holder.replaceChildren(root);
    },
    says() {
      const parts = shown().filter(([, group]) => group.classes).map(([, group]) => {
        const known = group.classes.map(([mean], c) => [mean, c]).filter(([mean]) => mean !== null).sort((a, b) => a[0] - b[0]);
        return known.length ? `${group.label} does worst on label ${known[0][1]} (${fixed(known[0][0])} %) and best on label ${known.at(-1)[1]} (${fixed(known.at(-1)[0])} %)` : `${group.label}: not known`;
      });
      const r = run(), k = place(r, state.device);
      const held = k < 0 ? '' : ` Underlined: the labels that device ${state.device} holds${r.held[k] > r.labels[k].length ? ' most of' : ''}.`;
      return `${parts.length ? `${listed(parts)}.` : 'No run has finished.'}${held}`;
    },
    table() {
      return {columns: ['method', 'label', 'accuracy', 'standard error'],
        rows: shown().filter(([, group]) => group.classes).flatMap(([, group]) => group.classes.map(([mean, error], c) => [group.label, c, mean, error]))};
    },
  };

  // ------------------------------------------------------- devices one by one

  const SINGLE = 60;  // up to this number each device has a line; more devices become bands
  function perDevice(value, name, text) {
    return {
      draw(holder, says) {
        const r = run(), rows = value(r);
        if (!rows) return holder.replaceChildren(html('p', {class: 'soft'}, `This record was made by an older version and has no ${name} per device.`));
        const x = r[state.x], areas = [], series = [], line = (k, label, kind) => ({label, x, y: rows.map(row => row[k]), error: null,
          colour: colour(r.group), kind, device: r.devices[k]});
        if (r.devices.length <= SINGLE) r.devices.forEach((device, k) => series.push(line(k, `device ${called(r, device)}`, 'device')));
        else {
          const sorted = rows.map(row => [...row].sort((a, b) => a - b));
          for (const [low, high] of [[0, 1], [0.1, 0.9], [0.25, 0.75]]) {
            areas.push({x, low: sorted.map(row => quantile(row, low)), high: sorted.map(row => quantile(row, high)), colour: colour(r.group)});
          }
          series.push({label: 'median', x, y: sorted.map(row => quantile(row, 0.5)), error: null, colour: colour(r.group), dash: ''});
        }
        const worst = worstOf(r, frame(r));
        series.push({...line(worst, `device ${called(r, r.devices[worst])}, worst off after round ${r.rounds[frame(r)]}`, ''), dash: ''});
        series.push(...followedLines(value).map(s => ({...s, device: state.device})));
        lineChart(holder, {says, series, areas, cursor: cursor(), within: [0, Infinity], least: 0.2, yText: text, devices: true});
      },
      says() {
        const r = run(), rows = value(r);
        if (!rows) return '';
        const f = frame(r), [low, high] = extent(rows[f]), worst = worstOf(r, f), top = rows[f].indexOf(high);
        const what = high - low < 0.005 * Math.abs(high) ? `all devices have ${text(low)}`
          : `from ${text(low)} to ${text(high)} (device ${called(r, r.devices[top])}); the worst-off device, ${called(r, r.devices[worst])}, has ${text(rows[f][worst])}, the strong line`;
        const bands = r.devices.length > SINGLE ? ' Bands: all devices, the middle 80 %, the middle half.' : ' One line per device.';
        const mine = place(r, state.device) >= 0 ? ` Dotted: device ${state.device}, at ${text(rows[f][place(r, state.device)])}.` : '';
        return `${runName(r)}, after round ${r.rounds[f]}: ${what}.${bands}${mine}`;
      },
      table() {
        const r = run(), rows = value(r) || [];
        return {columns: ['round', 'floats sent', 'device', name],
          rows: rows.flatMap((row, f) => row.map((v, k) => [r.rounds[f], r.floats[f], r.devices[k], v]))};
      },
    };
  }

  // ------------------------------------------------------------------ agreement

  const apart = {
    draw(holder, says) {
      lineChart(holder, {says, log: true, cursor: cursor(), yText: (y, e) => short(y) + (e === null ? '' : ` ± ${short(e)}`), series: shown().map(([g, group]) => ({
        // all devices start with the same model, at distance zero up to rounding, which a logarithmic axis cannot show
        label: group.label, x: group[state.x], y: group.apart.mean.map((v, i) => group.rounds[i] === 0 ? null : v), error: group.apart.error,
        colour: colour(g), dash: dash(g), group: g}))});
    },
    says() {
      return `${listed(shown().map(([, group]) => {
        const {mean} = group.apart, [, top] = extent(mean);
        return `${group.label}: at most ${short(top)}, at the end ${short(mean.at(-1))}${group.rho[0] === null ? '' : `, with rho = ${fixed(group.rho[0], 3)}`}`;
      }))}. All devices start with the same model, at distance 0, which is not drawn.`;
    },
    table() {
      return {columns: ['method', 'round', 'floats sent', 'mean', 'standard error', 'runs', 'rho'], rows: shown().flatMap(([, group]) =>
        group.rounds.map((t, i) => [group.label, t, group.floats[i], group.apart.mean[i], group.apart.error[i], group.n[i], group.rho[0]]))};
    },
  };

  // ---------------------------------------------------------------------- draw

  // plots that are on the page; some are absent if no run has the history of its devices
  const figures = Object.fromEntries(Object.entries({
    ...Object.fromEntries(Object.keys(data.measures).map(measure => [`curve-${measure}`, curve(measure)])),
    graph, spread, classes,
    weights: perDevice(r => r.share, 'weight / average', times),
    losses: perDevice(r => r.loss, 'loss', short),
    apart,
  }).filter(([id]) => $(id)));
  const keyed = new Set(['classes', 'apart', ...Object.keys(data.measures).map(measure => `curve-${measure}`)]);

  function draw() {
    if (runs.length) moment();
    for (const [id, figure] of Object.entries(figures)) {
      const holder = $(id), says = figure.says();
      figure.draw(holder.querySelector('.plot'), says);
      const caption = holder.querySelector('figcaption');
      caption.replaceChildren(together(says));
      if (keyed.has(id) && groups.length > 1 && shown().length <= 8) {
        caption.prepend(html('span', {class: 'legend', 'aria-hidden': 'true'}, ...shown().map(([g, group]) => html('span', {}, key(g), group.label))));
      }
      if (holder.querySelector('.numbers').open) fill(holder.querySelector('.numbers'), figure);
    }
    if (runs.length) card();
    const bar = $('following');
    bar.hidden = state.device === null;
    if (state.device !== null) {
      const stop = html('button', {type: 'button', 'aria-label': 'Stop following'}, '✕');
      stop.addEventListener('click', () => update({device: null}));
      bar.replaceChildren(html('span', {}, `Following device ${called(run(), state.device)} of seed ${run().seed}`), stop);
    }
  }

  /** The run and round that are shown, in their controls. */
  function moment() {
    const r = run(), f = frame(r), slider = $('round');
    $('run').value = state.run;
    slider.max = r.rounds.length - 1;
    slider.value = f;
    slider.setAttribute('aria-valuetext', `round ${r.rounds[f]}`);
    $('at').textContent = `${r.rounds[f]} of ${r.last}`;
  }

  const MOST = 500;  // rows of a table; the CSV file has all
  function fill(details, figure) {
    const {columns, rows} = figure.table();
    const cell = v => v === null || v === undefined ? '' : String(v);
    details.querySelector('.scroll').replaceChildren(
      html('table', {}, html('thead', {}, html('tr', {}, ...columns.map(name => html('th', {scope: 'col'}, name)))),
        html('tbody', {}, ...rows.slice(0, MOST).map(row => html('tr', {}, ...row.map(v => html('td', {}, cell(v))))))),
      ...(rows.length > MOST ? [html('p', {class: 'soft'}, `The first ${MOST} of ${rows.length} rows; the CSV file has all.`)] : []));
  }

  // ------------------------------------------------------------------ downloads

  function save(name, text, type) {
    const link = html('a', {download: name, href: URL.createObjectURL(new Blob([text], {type}))});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function csv({columns, rows}) {
    // a quote in front of a cell that a spreadsheet would take for a formula
    const cell = v => {
      if (v === null || v === undefined) return '';
      if (typeof v === 'number') return String(v);
      const text = /^[=+\-@\t\r]/.test(v) ? `'${v}` : v;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [columns, ...rows].map(row => row.map(cell).join(',')).join('\n') + '\n';
  }
  async function copy(button, text) {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = 'Copied';
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    } catch {  // not allowed here: select the text, so that it can be copied by hand
      getSelection().selectAllChildren(text);
    }
  }

  // ------------------------------------------------------------------- controls

  let playing = null;
  function stop() {
    clearInterval(playing);
    playing = null;
    $('play').textContent = '▶ Play';
    $('play').setAttribute('aria-pressed', 'false');
  }
  function play() {
    const r = run();
    if (frame(r) === r.rounds.length - 1) update({round: r.rounds[0]});
    $('play').textContent = '❚❚ Pause';
    $('play').setAttribute('aria-pressed', 'true');
    playing = setInterval(() => {
      const now = run(), f = frame(now);
      if (f === now.rounds.length - 1) stop();
      else update({round: f + 1 === now.rounds.length - 1 ? Infinity : now.rounds[f + 1]});
    }, 450);
  }

  function listenToRun() {
    $('run').append(...runs.map((r, i) => html('option', {value: i}, r.status === 'finished' ? runName(r) : `${runName(r)} (${r.status})`)));
    $('run').addEventListener('change', event => {
      const next = Number(event.target.value);
      // in a different problem the same number is a different device
      update({run: next, device: pairs[next] === pairs[state.run] ? state.device : null});
    });
    $('round').addEventListener('input', event => {
      stop();
      const r = run(), f = Number(event.target.value);
      update({round: f === r.rounds.length - 1 ? Infinity : r.rounds[f]});
    });
    $('play').addEventListener('click', () => playing === null ? play() : stop());
  }

  function listen() {
    $('controls').addEventListener('change', event => {
      const {name, value, checked} = event.target;
      if (name === 'group') {
        const visible = new Set(state.visible);
        if (checked) visible.add(Number(value)); else visible.delete(Number(value));
        update({visible});
      } else update({[name]: value});
    });
    $('controls').addEventListener('submit', event => event.preventDefault());
    if (runs.length) listenToRun();
    document.addEventListener('keydown', event => {
      if (event.key === 'Escape') { hideTip(); if (state.device !== null) update({device: null}); }
    });
    for (const [id, figure] of Object.entries(figures)) {
      $(id).querySelector('.csv').addEventListener('click', () => save(`${id}.csv`, csv(figure.table()), 'text/csv'));
      const details = $(id).querySelector('.numbers');
      details.addEventListener('toggle', () => { if (details.open) fill(details, figure); });
    }
    for (const button of document.querySelectorAll('.copy')) button.addEventListener('click', () => copy(button, button.parentNode.querySelector('pre')));
    for (const button of document.querySelectorAll('.save')) {
      button.addEventListener('click', () => save('config.toml', button.parentNode.querySelector('pre').textContent, 'text/plain'));
    }
    addEventListener('scroll', hideTip, {passive: true});
    let width = document.body.clientWidth;
    addEventListener('resize', () => {
      if (document.body.clientWidth !== width) { width = document.body.clientWidth; update({}); }
    });
  }

  listen();
  draw();
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
