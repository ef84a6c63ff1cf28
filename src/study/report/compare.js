// The report of dsmoe compare.
const models = data.models;
const spread = (m) => m.seeds > 1 ? `${fixed(m.loss.mean, 4)} ± ${fixed(m.loss.sd, 4)}` : fixed(m.loss.mean, 4);
const change = (value) => (value > 0 ? '+' : value < 0 ? '−' : '') + fixed(Math.abs(value), 4);

function svg(text) { return document.importNode(new DOMParser().parseFromString(text, 'image/svg+xml').documentElement, true); }

const best = models.reduce((a, b) => b.loss.mean < a.loss.mean ? b : a);
byId('top').append(
  el('p', { class: 'kicker' }, 'Comparison of architectures'), el('h1', {}, data.name),
  el('p', { class: 'lead' }, `${models.length} architectures from one config, each trained ${data.seeds === 1 ? 'once' : data.seeds + ' times'} for ${grouped(data.steps)} steps (${short(data.tokens)} tokens) on the same data in the same order. ` +
    'Losses are of held-out data, in nats per token; ± is the standard deviation over seeds.'),
  tiles([[fixed(best.loss.mean, 4), `lowest loss: ${best.label}`], [String(data.seeds), data.seeds === 1 ? 'seed: no spread is known' : 'seeds'], [short(data.tokens), 'tokens per run'], [short(models[0].expert_parameters), 'expert parameters']]));

byId('main').append(el('nav', { class: 'bar', 'aria-label': 'Sections' }, [['result', 'Result'], ['equal', 'What is equal'], ['curves', 'Loss curves'], data.domains.length && ['domains', 'Domains'], ['masks', 'Ablations'], ['redundancy', 'Redundancy']].filter(Boolean).map(([id, text]) => el('a', { href: '#' + id }, text))));

section('result', 'Result', null,
  el('div', { class: 'scroll' }, sortableTable([
    { name: 'Architecture', text: true, value: (m) => m.label }, { name: 'Held-out loss', value: (m) => m.loss.mean, show: spread },
    { name: 'Perplexity', value: (m) => m.loss.mean, show: (m) => fixed(Math.exp(m.loss.mean), 3) },
    { name: 'against ' + models[0].label, value: (m) => m.loss.mean - models[0].loss.mean, show: (m) => m === models[0] ? '' : change(m.loss.mean - models[0].loss.mean) },
    { name: 'Seeds', text: true, value: (m) => m.losses[0], show: (m) => m.losses.map((l) => fixed(l, 4)).join('  ') }], models).table),
  data.verdicts.map((v) => el('p', { class: v.sure ? 'verdict' : 'verdict unsure' }, v.text)));

section('equal', 'What is equal', data.equal_note, el('div', { class: 'scroll' }, sortableTable([
  { name: 'Architecture', text: true, value: (m) => m.label }, { name: 'Routed', value: (m) => m.routed }, { name: 'Active', value: (m) => m.active }, { name: 'Shared', value: (m) => m.shared },
  { name: 'Width', value: (m) => m.width }, { name: 'Combinations', value: (m) => m.combinations.length, show: (m) => m.routed ? shortCount(m.combinations) : '–' },
  { name: 'Expert parameters', value: (m) => m.expert_parameters, show: (m) => grouped(m.expert_parameters) }, { name: 'active', value: (m) => m.active_expert_parameters, show: (m) => grouped(m.active_expert_parameters) },
  { name: 'All parameters', value: (m) => m.parameters, show: (m) => grouped(m.parameters) }, { name: 'FLOPs per token', title: 'training, forward and backward', value: (m) => m.flops, show: (m) => short(m.flops) }], models).table));

section('curves', 'Loss curves', 'Means over the seeds; the bands are one standard deviation.', el('div', { class: 'plots' }, data.plots.curves.map(svg)));
if (data.domains.length) section('domains', 'By domain', 'Held-out loss, mean and standard deviation over seeds.', el('div', { class: 'scroll' }, sortableTable([{ name: 'Domain', text: true, value: (d) => d.name },
  ...models.map((m, i) => ({ name: m.label, value: (d) => d.losses[i].mean, show: (d) => fixed(d.losses[i].mean, 3) + (data.seeds > 1 ? ' ± ' + fixed(d.losses[i].sd, 3) : '') }))], data.domains).table));
section('masks', 'Ablations', 'As in section 4.5 of the paper: what the loss becomes when each token may not have its best experts, when it has fewer, and without the shared ones. A model whose experts can stand in for each other loses less.',
  el('div', { class: 'plots' }, data.plots.ablations.map(svg)),
  el('div', { class: 'scroll', style: { marginTop: '1rem' } }, sortableTable([{ name: 'Architecture', text: true, value: (a) => a.model }, { name: 'Change', text: true, value: (a) => a.label },
    { name: 'Loss', value: (a) => a.loss.mean, show: (a) => fixed(a.loss.mean, 4) + (data.seeds > 1 ? ' ± ' + fixed(a.loss.sd, 4) : '') }, { name: 'Change', value: (a) => a.change, show: (a) => a.change === 0 ? '' : change(a.change) }], data.ablations).table));
section('redundancy', 'Redundancy and specialisation', 'Of the routed experts, averaged over layers and seeds, on the held-out data.', el('div', { class: 'scroll' }, sortableTable([
  { name: 'Architecture', text: true, value: (m) => m.label },
  { name: 'First mask costs', title: 'loss when the first share of best experts is masked, less the loss', value: (m) => m.mask_cost, show: (m) => change(m.mask_cost) },
  { name: 'Evenness', value: (m) => m.evenness, show: (m) => percent(m.evenness, 1) }, { name: 'Domain bits per choice', title: 'mutual information of a choice and the domain', value: (m) => m.domain_bits, show: (m) => fixed(m.domain_bits, 4) },
  { name: 'Domain bits per token', title: 'the same, of all choices of a token if they were independent: an upper bound', value: (m) => m.domain_bits * m.active, show: (m) => fixed(m.domain_bits * m.active, 3) },
  { name: 'Sets seen', title: 'different sets of experts per layer', value: (m) => m.sets_seen, show: (m) => grouped(m.sets_seen) }], models.filter((m) => m.routed)).table));
byId('foot').append(el('p', {}, data.command ? el('span', {}, 'Made by ', el('code', {}, data.command), '. ') : null, `Written by dsmoe ${data.version}.`));
