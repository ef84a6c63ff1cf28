// The report of dsmoe inspect.
const layers = data.layers, domains = data.data.domains, experts = data.model.routed_experts, perToken = data.model.experts_per_token;
const state = { layer: 0, expert: null, metric: 'load' };
const meanLoad = (l) => layers[l].load.reduce((a, b) => a + b, 0) / experts;
const share = (l, e) => layers[l].load[e] / data.data.tokens;
// The busiest experts where a square of all of them would be too large to look at.
const kMostPairs = 128;
const listeners = [];
function choose(change) { Object.assign(state, change); listeners.forEach((hear) => hear()); }
const pieceText = (t) => el('span', { class: 'piece' }, visible(t.text));

function header() {
  const d = data.data, dead = layers.reduce((n, l) => n + l.dead.length, 0);
  const even = layers.reduce((s, l) => s + l.evenness, 0) / layers.length;
  byId('top').append(
    el('p', { class: 'kicker' }, 'Routing report'), el('h1', {}, data.model.name),
    el('p', { class: 'lead' }, `${layers.length} MoE layers of ${experts} routed experts, ${perToken} chosen per token` +
      (data.model.shared_experts ? `, ${data.model.shared_experts} shared` : '') + (data.model.parameters ? `; ${short(data.model.parameters)} parameters. ` : '. ') +
      `Looked at ${grouped(d.tokens)} tokens in ${grouped(d.sequences)} sequences` + (domains.length > 1 ? ` of ${domains.length} domains.` : '.')),
    tiles([
      d.loss !== undefined && [fixed(d.loss, 3), 'loss, nats per token'],
      d.loss !== undefined && [d.loss < 9 ? fixed(Math.exp(d.loss), 2) : short(Math.exp(d.loss)), 'perplexity'],
      [percent(even, 1), 'evenness of the load'],
      [fixed(Math.max(...layers.map((l) => l.imbalance)), 2) + ' ×', 'busiest expert over the mean'],
      [dead ? grouped(dead) : 'none', `dead of ${grouped(layers.length * experts)} experts`],
      domains.length > 1 && [fixed(layers.reduce((s, l) => s + l.domain_bits, 0) / layers.length, 3), 'bits on the domain per choice'],
    ]));
  const links = [['load', 'Load'], ['layers', 'Layers'], domains.length > 1 && ['domains', 'Domains'], ['pairs', 'Pairs'], data.text.length && ['text', 'Text'],
    data.stability && ['stability', 'Stability'], ['experts', 'All experts']].filter(Boolean);
  const choice = select('Layer', layers.map((l, i) => [i, l.layer]), state.layer, (v) => choose({ layer: Number(v), expert: null }));
  listeners.push(() => { choice.querySelector('select').value = state.layer; });
  byId('main').append(el('nav', { class: 'bar', 'aria-label': 'Sections' }, links.map(([id, text]) => el('a', { href: '#' + id }, text)), choice));
}

function expertFacts(l, e) {
  const layer = layers[l];
  return [el('b', {}, `Layer ${layer.layer}, expert ${e}`), el('div', {}, `${percent(share(l, e), 2)} of tokens, ${fixed(layer.load[e] / meanLoad(l), 2)} × the mean`),
    el('div', {}, `mean weight ${fixed(layer.weight[e], 3)}`), layer.tokens[e].length ? el('div', { class: 'more' }, layer.tokens[e].slice(0, 5).map((t) => visible(t.text)).join('  ')) : null].filter(Boolean);
}

function loadSection() {
  const metrics = { load: ['load over the mean', (l, e) => layers[l].load[e] / meanLoad(l), 'rise', 0, 3], weight: ['mean weight', (l, e) => layers[l].weight[e], 'rise', 0, Math.max(...layers.flatMap((l) => l.weight))] };
  if (domains.length > 1) domains.forEach((d, i) => { metrics['d' + i] = ['lift on ' + d.name, (l, e) => layers[l].domain_lift[e][i], 'split']; });
  const panel = el('div', { class: 'panel', 'aria-live': 'polite' }), holder = el('div', {});
  let map;
  const build = () => {
    const [name, value, colours, low, high] = metrics[state.metric];
    map = heatMap('load-map', {
      label: 'Layer by expert: ' + name, rows: layers.map((l) => l.layer), columns: layers[0].load.map((_, e) => e), ramp: colours, cellHeight: layers.length > 30 ? 14 : layers.length < 6 ? 34 : 22,
      value: (l, e) => colours === 'split' ? liftPlace(value(l, e)) : (value(l, e) - low) / (high - low), describe: expertFacts, choose: (l, e) => choose({ layer: l, expert: e }) });
    holder.replaceChildren(map.grid, colours === 'split' ? legend('split', 'a quarter', 'four times the usual share') : legend('rise', fixed(low, 0), state.metric === 'load' ? '3 × the mean or more' : fixed(high, 3)));
    mark();
  };
  const mark = () => {
    holder.querySelectorAll('.chosen').forEach((c) => c.classList.remove('chosen'));
    if (state.expert !== null) map.cell(state.layer, state.expert).classList.add('chosen');
  };
  const describe = () => {
    const l = state.layer, layer = layers[l], e = state.expert ?? layer.load.indexOf(Math.max(...layer.load)), partners = [];
    for (let o = 0; o < experts; o++) if (o !== e) partners.push([o, pairLift(l, e, o)]);
    partners.sort((a, b) => b[1] - a[1]);
    const part = (title, content) => el('div', {}, el('h3', {}, title), content);
    panel.replaceChildren(
      el('div', { class: 'whole' }, el('h3', {}, `Layer ${layer.layer}, expert ${e}` + (state.expert === null ? ', the busiest' : '')),
        el('div', { class: 'facts' }, el('span', {}, el('b', {}, percent(share(l, e), 2)), ' of tokens'), el('span', {}, el('b', {}, fixed(layer.load[e] / meanLoad(l), 2) + ' ×'), ' the mean load'), el('span', {}, el('b', {}, fixed(layer.weight[e], 3)), ' mean weight'))),
      part('Tokens it serves most, by lift', layer.tokens[e].length ? bars(layer.tokens[e].slice(0, 10).map((t) => [pieceText(t), t.lift, `${fixed(t.lift, 1)} × in ${grouped(t.count)}`]), layer.tokens[e][0].lift) : el('p', { class: 'note' }, 'None above the base rate.')),
      domains.length > 1 ? part('Domains, by lift', bars(domains.map((d, i) => [d.name, layer.domain_lift[e][i], fixed(layer.domain_lift[e][i], 2) + ' ×']).sort((a, b) => b[1] - a[1]).slice(0, 10), Math.max(2, ...layer.domain_lift[e]))) : '',
      part('Chosen together with, by lift', bars(partners.slice(0, 10).map(([o, v]) => ['expert ' + o, v, fixed(v, 2) + ' ×']), Math.max(2, partners[0] ? partners[0][1] : 2))));
  };
  const s = section('load', 'Where the tokens go', 'Every row is a layer, every column an expert. Choose a cell, with the pointer or with the arrow keys and Enter, to see what that expert does.', holder, panel);
  s.querySelector('.head').append(select('Show', Object.entries(metrics).map(([k, m]) => [k, m[0]]), 'load', (v) => { state.metric = v; build(); }));
  build();
  describe();
  listeners.push(mark, describe);
  redraws.push(() => map.draw());
}

function layersSection() {
  const count = (l) => l.combinations.exact ? grouped(l.combinations.seen) : '≈ ' + short(l.combinations.seen);
  const { table } = sortableTable([
    { name: 'Layer', value: (l) => l.layer },
    { name: 'Evenness', title: 'entropy of the load over that of an even load', value: (l) => l.evenness, show: (l) => percent(l.evenness, 1) },
    { name: 'Entropy', title: 'of the load, in nats', value: (l) => l.entropy, show: (l) => fixed(l.entropy, 3) },
    { name: 'Imbalance', title: 'largest load over the mean', value: (l) => l.imbalance, show: (l) => fixed(l.imbalance, 2) },
    { name: 'Dead', title: 'experts that no token chose', value: (l) => l.dead.length, show: (l) => el('span', { class: l.dead.length ? 'flag' : 'fine' }, String(l.dead.length)) },
    { name: 'Overloaded', title: 'experts with more than twice the mean load', value: (l) => l.overloaded.length },
    { name: 'Combinations seen', title: 'different sets of experts that tokens chose', value: (l) => l.combinations.seen, show: count },
    { name: 'that exist', value: (l) => l.combinations.possible.length, show: (l) => shortCount(l.combinations.possible) },
    { name: 'New sets per token', title: 'combinations seen over tokens looked at', value: (l) => l.combinations.seen / data.data.tokens, show: (l) => percent(l.combinations.seen / data.data.tokens, 1) },
    domains.length > 1 && { name: 'Domain bits', title: 'mutual information of a choice and the domain', value: (l) => l.domain_bits, show: (l) => fixed(l.domain_bits, 4) },
  ].filter(Boolean), layers, { go: (l) => choose({ layer: layers.indexOf(l), expert: null }) });
  section('layers', 'Layer by layer', 'A row chooses its layer for the sections below.', el('div', { class: 'scroll' }, table));
}

function domainsSection() {
  const holder = el('div', {});
  let map;
  const build = () => {
    const layer = layers[state.layer];
    map = heatMap('domain-map', {
      label: 'Expert by domain', rows: domains.map((d) => d.name), columns: layer.load.map((_, e) => e), ramp: 'split', cellHeight: 22,
      value: (d, e) => liftPlace(layer.domain_lift[e][d]), choose: (d, e) => choose({ expert: e }),
      describe: (d, e) => [el('b', {}, `Expert ${e} on ${domains[d].name}`), el('div', {}, `chosen ${fixed(layer.domain_lift[e][d], 2)} × as often as over all domains`)] });
    holder.replaceChildren(map.grid, legend('split', 'a quarter', 'four times the usual share'));
    title.textContent = `Specialisation by domain, layer ${layer.layer}`;
  };
  const { table } = sortableTable([
    { name: 'Domain', text: true, value: (d) => d.name }, { name: 'Tokens', value: (d) => d.tokens, show: (d) => grouped(d.tokens) },
    { name: 'Loss', value: (d) => d.loss ?? 0, show: (d) => d.loss === undefined ? '–' : fixed(d.loss, 3) }], domains);
  const s = section('domains', 'Specialisation by domain', 'How much more, or less, often an expert is chosen on one domain than on all.', holder, el('div', { class: 'scroll', style: { marginTop: '1rem', maxWidth: '28rem' } }, table));
  const title = s.querySelector('h2');
  build();
  listeners.push(build);
  redraws.push(() => map.draw());
}

// How many tokens chose both; experts without tokens have no row.
function together(l, a, b) { return layers[l].pairs[a][b] ?? 0; }
function pairLift(l, a, b) {
  const layer = layers[l], expected = layer.load[a] * layer.load[b] / data.data.tokens;
  return expected > 0 ? together(l, a, b) / expected : 0;
}
function pairsSection() {
  const holder = el('div', {});
  let map;
  const build = () => {
    const l = state.layer, order = layers[l].load.map((n, e) => [n, e]).sort((a, b) => b[0] - a[0]).slice(0, kMostPairs).map((x) => x[1]).sort((a, b) => a - b);
    map = heatMap('pair-map', {
      label: 'Expert by expert', rows: order, columns: order, ramp: 'split', cell: 4, cellMax: 22, square: true,
      value: (r, c) => r === c ? .5 : liftPlace(pairLift(l, order[r], order[c])), choose: (r) => choose({ expert: order[r] }),
      describe: (r, c) => [el('b', {}, r === c ? `Expert ${order[r]}` : `Experts ${order[r]} and ${order[c]}`), el('div', {}, r === c ? `${grouped(layers[l].load[order[r]])} tokens` :
        `${grouped(together(l, order[r], order[c]))} tokens chose both, ${fixed(pairLift(l, order[r], order[c]), 2)} × what chance would give`)] });
    const pairs = [];
    for (let a = 0; a < experts; a++) for (let b = a + 1; b < experts; b++) if (together(l, a, b) >= 5) pairs.push({ a, b, n: together(l, a, b), lift: pairLift(l, a, b) });
    pairs.sort((x, y) => y.lift - x.lift);
    const { table } = sortableTable([{ name: 'Pair', text: true, value: (p) => p.a * experts + p.b, show: (p) => `${p.a} + ${p.b}` }, { name: 'Tokens', value: (p) => p.n, show: (p) => grouped(p.n) },
      { name: 'Lift', title: 'over what the two loads would give by chance', value: (p) => p.lift, show: (p) => fixed(p.lift, 2) }], pairs.slice(0, 200), { go: (p) => choose({ expert: p.a }) });
    holder.replaceChildren(el('div', { class: 'halves' }, el('div', {}, map.grid, legend('split', 'a quarter', 'four times chance')), el('div', { class: 'tall' }, table)));
    title.textContent = `Experts chosen together, layer ${layers[l].layer}`;
  };
  const s = section('pairs', 'Experts chosen together', experts > kMostPairs ? `The ${kMostPairs} busiest experts.` : 'Blue pairs work together, orange ones avoid each other.', holder);
  const title = s.querySelector('h2');
  build();
  listeners.push(build);
  redraws.push(() => map.draw());
}

function textSection() {
  const view = el('div', { class: 'texts', id: 'text-view', role: 'group', 'aria-label': 'Tokens coloured by expert' }), items = [], places = [];
  data.text.forEach((sample, n) => {
    if (n === 0 || data.text[n - 1].domain !== sample.domain) view.append(el('span', { class: 'domain' }, domains[sample.domain] ? domains[sample.domain].name : ''));
    sample.tokens.forEach((piece, t) => {
      const parts = piece.split(/(\r\n|[\r\n])/), token = el('span', { class: 'tok' });
      for (const part of parts) if (/[\r\n]/.test(part)) token.append(el('span', { class: 'mark' }, '⏎'), '\n'); else token.append(part);
      items.push(token);
      places.push([sample, t]);
      view.append(token);
    });
    view.append('\n');
  });
  const at = (sample, l, t, j) => [sample.experts[l][t * perToken + j], sample.weights[l][t * perToken + j] / 1000];
  const draw = () => {
    const l = state.layer, wanted = state.expert;
    view.classList.toggle('focus', wanted !== null);
    items.forEach((item, i) => {
      const [sample, t] = places[i];
      let [expert, weight] = at(sample, l, t, 0), hit = wanted === null, total = 0;
      for (let j = 0; j < perToken; j++) {
        const [e, w] = at(sample, l, t, j);
        total += w;
        if (e === wanted) { expert = e; weight = w; hit = true; }
      }
      item.style.background = hit ? expertColour(expert, .16 + .6 * Math.min(1, weight / (total || 1) * perToken / 3)) : 'transparent';
      item.classList.toggle('hit', hit);
    });
    title.textContent = `Text, coloured by expert, layer ${layers[l].layer}` + (wanted === null ? '' : `, expert ${wanted}`);
    clear.hidden = wanted === null;
  };
  const describe = (i) => {
    const [sample, t] = places[i], rows = [], l = state.layer;
    let most = 0;
    for (let j = 0; j < perToken; j++) most = Math.max(most, at(sample, l, t, j)[1]);
    for (let j = 0; j < perToken; j++) {
      const [e, w] = at(sample, l, t, j);
      rows.push(el('div', { class: 'row' }, el('span', {}, 'expert ' + e), el('i', { style: { width: 100 * w / (most || 1) + '%', background: expertColour(e, .95) } }), el('span', {}, fixed(w, 3))));
    }
    const others = layers.map((layer, m) => m === l ? null : `${layer.layer}: ${Array.from({ length: Math.min(perToken, 3) }, (_, j) => at(sample, m, t, j)[0]).join(' ')}`).filter(Boolean);
    return [el('b', {}, visible(sample.tokens[t])), el('div', {}, `layer ${layers[l].layer}`), ...rows, el('div', { class: 'more' }, others.length ? 'other layers: ' + others.slice(0, 8).join(' · ') + (others.length > 8 ? ' …' : '') : '')];
  };
  const clear = el('button', { type: 'button', onclick: () => choose({ expert: null }) }, 'All experts');
  const s = section('text', 'Text, coloured by expert', 'The colour is that of the best expert of the chosen layer, as strong as its weight. Point at a token, or focus the text and use the arrow keys, to see all its experts.', view);
  const title = s.querySelector('h2');
  s.querySelector('.head').append(clear);
  explorable(view, items, 0, describe, (i) => choose({ expert: at(...[places[i][0], state.layer, places[i][1], 0])[0] }));
  draw();
  listeners.push(draw);
  redraws.push(draw);
}

function stabilitySection() {
  const s = data.stability;
  const { table } = sortableTable([
    { name: 'Layer', value: (r) => r.layer },
    { name: 'Shared choices', title: 'experts of a token that both models chose', value: (r) => r.overlap, show: (r) => percent(r.overlap, 1) },
    { name: 'by chance', title: 'what two independent routings with these loads would share', value: (r) => r.chance, show: (r) => percent(r.chance, 1) },
    { name: 'Same best expert', value: (r) => r.first, show: (r) => percent(r.first, 1) },
    { name: 'Shared after renaming', title: 'with the experts of the second model renamed in the best way', value: (r) => r.matched, show: (r) => percent(r.matched, 1) },
    { name: 'Renamed', title: 'experts that another number takes the place of', value: (r) => r.renamed },
  ], s.layers);
  section('stability', 'Stability against ' + s.model, s.loss === undefined ? null : `The other model's loss on the same tokens is ${fixed(s.loss, 3)}; this one's is ${fixed(data.data.loss, 3)}.`, el('div', { class: 'scroll' }, table));
}

function expertsSection() {
  const rows = layers.flatMap((layer, l) => layer.load.map((n, e) => ({ l, e, n, layer })));
  const { table, filter } = sortableTable([
    { name: 'Layer', value: (r) => r.layer.layer }, { name: 'Expert', value: (r) => r.e },
    { name: 'Load', value: (r) => r.n, show: (r) => grouped(r.n) }, { name: 'of tokens', value: (r) => r.n, show: (r) => percent(share(r.l, r.e), 2) },
    { name: 'over mean', value: (r) => r.n / meanLoad(r.l), show: (r) => fixed(r.n / meanLoad(r.l), 2) }, { name: 'Mean weight', value: (r) => r.layer.weight[r.e], show: (r) => fixed(r.layer.weight[r.e], 3) },
    domains.length > 1 && { name: 'Most at home in', text: true, value: (r) => Math.max(...r.layer.domain_lift[r.e]), show: (r) => { const lift = r.layer.domain_lift[r.e], best = lift.indexOf(Math.max(...lift)); return r.n ? `${domains[best].name} (${fixed(lift[best], 2)} ×)` : '–'; } },
    { name: 'Tokens by lift', text: true, value: (r) => r.layer.tokens[r.e].length ? r.layer.tokens[r.e][0].lift : 0, show: (r) => el('span', {}, r.layer.tokens[r.e].slice(0, 6).flatMap((t) => [pieceText(t), ' '])) },
  ].filter(Boolean), rows, { go: (r) => { choose({ layer: r.l, expert: r.e }); location.hash = '#load'; } });
  const search = el('input', { type: 'search', placeholder: 'a token, or a layer', 'aria-label': 'Filter', oninput: () => { const q = search.value.toLowerCase(); filter((r) => !q || String(r.layer.layer) === q || r.layer.tokens[r.e].some((t) => visible(t.text).toLowerCase().includes(q))); } });
  const s = section('experts', 'All experts', null, el('div', { class: 'tall' }, table));
  s.querySelector('.head').append(el('label', {}, 'Find', search));
}

header();
loadSection();
layersSection();
if (domains.length > 1) domainsSection();
pairsSection();
if (data.text.length) textSection();
if (data.stability) stabilitySection();
expertsSection();
byId('foot').append(el('p', {}, 'Lift is a rate over the usual rate: 2 × is twice as often. Tokens are ordered by a lift to which ten occurrences at the base rate were added, so that rare tokens do not lead by chance. ' +
  'Evenness is the entropy of the load over that of an even load. ' + (data.data.token_counts_exact ? '' : 'Counts of tokens per expert are those of a sketch and may be somewhat too low. ') + `Written by dsmoe ${data.version}.`));
