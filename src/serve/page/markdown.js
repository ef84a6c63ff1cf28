// Blocks and inline nodes to elements, and a view that grows with an answer: only its last block is made again.
import {copyButton, h} from './dom.js';
import {parseBlocks} from './blocks.js';
import {parseInline} from './inline.js';
import {tokenAt} from './trace.js';

// Text as nodes: one per token where tokens are known. `at`: the source offset of each character, or of the first alone.
export function textNodes(s, at, tokens, paint) {
  if (!tokens || !tokens.length) return [document.createTextNode(s)];
  const place = (i) => (typeof at === 'number' ? at + i : at[i]);
  const out = [];
  for (let i = 0; i < s.length;) {
    const t = tokenAt(tokens, place(i));
    let end = i + 1;
    while (end < s.length && t < tokens.length && place(end) < tokens[t].end && place(end) >= tokens[t].start) end++;
    if (t === tokens.length) end = s.length;
    const span = h('span', t < tokens.length ? {class: 'tok', 'data-t': t} : {}, s.slice(i, end));
    if (t < tokens.length && paint) paint(span, t);
    out.push(span);
    i = end;
  }
  return out;
}

// The text of nodes that are too deep to be shown as what they are; without recursion, for the same reason.
function flatText(nodes) {
  const out = [], stack = [...nodes].reverse();
  while (stack.length) {
    const node = stack.pop();
    if (node.nodes) stack.push(...[...node.nodes].reverse());
    else if (node.s) out.push({type: 'text', s: node.s, at: node.at});
  }
  return out;
}

class Renderer {
  constructor(tokens, paint) {
    this.tokens = tokens;
    this.paint = paint;
  }
  text({s, at}) {
    return textNodes(s, at, this.tokens, this.paint);
  }
  inline(nodes, depth = 0) {
    return nodes.flatMap((node) => {
      if (node.type === 'text') return this.text(node);
      if (node.type === 'code') return [h('code', {}, this.text(node))];
      if (node.type === 'break') return [h('br')];
      const inner = this.inline(depth < 30 ? node.nodes : flatText(node.nodes), depth + 1);
      if (node.type !== 'link') return [h(node.type, {}, inner)];
      return [h('a', {href: node.href, target: '_blank', rel: 'noopener noreferrer nofollow'}, node.image ? 'image: ' : '', inner)];
    });
  }
  lines(lines) {
    return this.inline(parseInline(lines));
  }
  blocks(blocks, tight = false) {
    return blocks.flatMap((b) => this.block(b, tight));
  }
  block(b, tight) {
    switch (b.type) {
      case 'paragraph': return tight ? this.lines(b.lines) : [h('p', {}, this.lines(b.lines))];
      case 'heading': return [h('h' + Math.min(6, b.level + 1), {}, this.lines(b.lines))];  // the page has the first level
      case 'rule': return [h('hr')];
      case 'quote': return [h('blockquote', {}, this.blocks(b.blocks))];
      case 'code': return [this.code(b)];
      case 'table': return [this.table(b)];
      case 'list': {
        const items = b.items.map((item) => h('li', {}, this.blocks(item.blocks, b.tight)));
        return [h(b.ordered ? 'ol' : 'ul', b.ordered && b.first !== 1 ? {start: b.first} : {}, items)];
      }
    }
    return [];
  }
  code(b) {
    const last = b.lines.length - 1;
    const content = b.lines.flatMap((line, i) => this.text({s: i < last ? line.s + '\n' : line.s, at: line.at}));
    const text = b.lines.map((line) => line.s).join('\n');
    return h('div', {class: 'code'}, h('div', {class: 'code-head'}, h('span', {}, b.language || 'text'), copyButton(() => text)),
      h('pre', {tabindex: 0}, h('code', {}, content)));
  }
  table(b) {
    const cell = (tag, c, i) => {
      const element = h(tag, {}, c ? this.lines([c]) : '');
      if (b.align[i]) element.style.textAlign = b.align[i];
      return element;
    };
    const head = h('thead', {}, h('tr', {}, b.head.map((c, i) => cell('th', c, i))));
    const rows = b.rows.map((row) => h('tr', {}, b.align.map((_, i) => cell('td', row[i], i))));
    return h('div', {class: 'table', tabindex: 0}, h('table', {}, head, h('tbody', {}, rows)));
  }
}

// Where the line `before` lines before the last one begins.
function lineStart(source, before) {
  let at = source.length;
  for (let i = 0; i <= before && at >= 0; i++) at = source.lastIndexOf('\n', at - 1);
  return at + 1;
}

export class MarkdownView {
  #blocks = [];  // {start, nodes}
  #source = '';

  constructor(element) {
    this.element = element;
  }

  // `tokens`: of a Trace, or null. `paint`: is given the element and number of each token.
  //
  // A source that goes on where the last one ended keeps its blocks but for the last ones. More text can change the line that
  // is being written, and a line before it can become the head of a table by it: where a block begins is certain from the
  // line before those two on.
  update(source, tokens = null, paint = null) {
    const certain = source.startsWith(this.#source) ? lineStart(this.#source, 2) : -1;
    let from = 0;
    while (this.#blocks.length) {
      const {start, nodes} = this.#blocks.pop();
      for (const node of nodes) node.remove();
      from = start;
      if (start <= certain) break;
    }
    if (!this.#blocks.length) from = 0;
    this.#source = source;
    const renderer = new Renderer(tokens, paint);
    for (const block of parseBlocks(source, from)) {
      const nodes = renderer.block(block, false);
      this.element.append(...nodes);
      this.#blocks.push({start: block.start, nodes});
    }
  }
}
