// The text within a block: code, emphasis, links, line breaks. One pass over the characters makes pieces; delimiters are then
// matched with a stack, as CommonMark does, in time that grows with the length of the text however hostile it is.
//
// Nodes: {type: 'text' | 'code', s, at} (at: offset of each character in the source), {type: 'break'},
// {type: 'strong' | 'em' | 'del', nodes}, {type: 'link', href, nodes}.

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;

// The address if it is absolute and of a kind that runs nothing; else null.
export function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(text)) return null;
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// Lines to one text, with the offset of every character.
function joined(lines) {
  let s = '';
  const at = [];
  lines.forEach((line, n) => {
    if (n > 0) {
      s += '\n';
      at.push(line.at - 1);
    }
    s += line.s;
    for (let i = 0; i < line.s.length; i++) at.push(line.at + i);
  });
  return {s, at};
}

// The end of the next run of exactly `n` backticks, by length of run: found once for the whole text.
function backtickRuns(s) {
  const runs = new Map();
  for (const match of s.matchAll(/`+/g)) {
    const n = match[0].length;
    if (!runs.has(n)) runs.set(n, {places: [], next: 0});
    runs.get(n).places.push(match.index);
  }
  return (n, from) => {
    const list = runs.get(n);
    while (list && list.next < list.places.length && list.places[list.next] < from) list.next++;
    return list?.places[list.next] ?? -1;
  };
}

class Scanner {
  constructor({s, at}) {
    this.s = s;
    this.at = at;
    this.pieces = [];
    this.from = 0;       // of text that is not yet a piece
    this.brackets = [];  // pieces that are '[' or '!['
    this.closing = backtickRuns(s);
  }

  text(from, to) {
    if (to > from) this.pieces.push({type: 'text', s: this.s.slice(from, to), at: this.at.slice(from, to)});
  }
  flush(to) {
    this.text(this.from, to);
    this.from = to;
  }
  // A piece instead of the characters from i to `to`.
  replace(i, to, piece) {
    this.flush(i);
    this.pieces.push(piece);
    this.from = to;
    return to;
  }

  code(i) {
    let n = 1;
    while (this.s[i + n] === '`') n++;
    const end = this.closing(n, i + n);
    if (end < 0) return i + n;
    let [from, to] = [i + n, end];
    const inner = this.s.slice(from, to);
    if (inner.length > 2 && /^\s/.test(inner) && /\s$/.test(inner) && inner.trim()) from += 1, to -= 1;
    return this.replace(i, end + n, {type: 'code', s: this.s.slice(from, to).replaceAll('\n', ' '), at: this.at.slice(from, to)});
  }

  delimiters(i) {
    const c = this.s[i];
    let n = 1;
    while (this.s[i + n] === c) n++;
    if (c === '~' && n !== 2) return i + n;
    const before = i === 0 ? ' ' : this.s[i - 1], after = this.s[i + n] ?? ' ';
    const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const within = c === '_';  // snake_case is no emphasis
    const piece = {type: 'delimiter', c, n, from: i, opens: [], closes: [], s: this.s, at: this.at};
    piece.canOpen = left && (!within || !right || PUNCTUATION.test(before));
    piece.canClose = right && (!within || !left || PUNCTUATION.test(after));
    return this.replace(i, i + n, piece);
  }

  open(i, length) {
    const piece = {type: 'text', s: this.s.slice(i, i + length), at: this.at.slice(i, i + length)};
    this.replace(i, i + length, piece);
    this.brackets.push(this.pieces.length - 1);
    return i + length;
  }

  // At ']': a link if there is an opening bracket, and an address in parentheses follows.
  close(i) {
    const opener = this.brackets.pop();
    if (opener === undefined || this.s[i + 1] !== '(') return i + 1;
    const address = this.address(i + 2);
    const href = address && safeAddress(address.text);
    if (!href) return i + 1;
    const end = this.replace(i, address.end, {type: 'end'});
    const image = this.pieces[opener].s.startsWith('!');
    matchDelimiters(this.pieces, opener + 1, this.pieces.length);
    this.pieces[opener] = {type: 'begin', node: {type: 'link', href, image, nodes: []}};
    this.brackets.length = 0;  // no link within a link
    return end;
  }
  // "address" or "<address>", perhaps a title, and ")"; null when it is not so. Looks at 2,000 characters at most.
  address(from) {
    const rest = this.s.slice(from, from + 2000);
    const match = /^\s*(?:<([^<>\n]*)>|((?:[^\s()<>\\]|\\.|\([^\s()]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(rest);
    return match && {text: match[1] ?? match[2].replace(/\\([!-/:-@[-`{-~])/g, '$1'), end: from + match[0].length};
  }

  // At 'h' of http: the address, without what most likely belongs to the sentence around it.
  bareAddress(i) {
    if (i > 0 && /[\p{L}\p{N}_]/u.test(this.s[i - 1])) return i + 1;
    const match = /^https?:\/\/[^\s<>"`\\^{}|]+/i.exec(this.s.slice(i, i + 2000));
    if (!match) return i + 1;
    let text = match[0].replace(/[.,;:!?'*_~\]]+$/, '');
    while (text.endsWith(')') && text.split(')').length > text.split('(').length) text = text.slice(0, -1).replace(/[.,;:!?'*_~\]]+$/, '');
    const href = safeAddress(text);
    if (!href || text.length < 10) return i + 1;
    return this.link(i, i + text.length, href, i, i + text.length);
  }
  angle(i) {
    const match = /^<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>|^<br ?\/?>/i.exec(this.s.slice(i, i + 2000));
    if (!match) return i + 1;
    if (!match[1]) return this.replace(i, i + match[0].length, {type: 'break'});
    const href = safeAddress(match[1]);
    return href ? this.link(i, i + match[0].length, href, i + 1, i + match[0].length - 1) : i + 1;
  }
  link(i, end, href, from, to) {
    const text = {type: 'text', s: this.s.slice(from, to), at: this.at.slice(from, to)};
    return this.replace(i, end, {type: 'link', href, nodes: [text]});
  }

  scan() {
    const s = this.s;
    for (let i = 0; i < s.length;) {
      const c = s[i];
      if (c === '\\' && s[i + 1] === '\n') i = this.replace(i, i + 2, {type: 'break'});
      else if (c === '\\' && i + 1 < s.length && ESCAPABLE.test(s[i + 1])) {
        this.flush(i);
        this.from = i + 1;  // the character stays, the backslash goes
        i += 2;
      } else if (c === '`') i = this.code(i);
      else if (c === '*' || c === '_' || c === '~') i = this.delimiters(i);
      else if (c === '!' && s[i + 1] === '[') i = this.open(i, 2);
      else if (c === '[') i = this.open(i, 1);
      else if (c === ']') i = this.close(i);
      else if (c === '<') i = this.angle(i);
      else if (c === 'h' && s.startsWith('http', i)) i = this.bareAddress(i);
      else i += 1;
    }
    this.flush(s.length);
    return this.pieces;
  }
}

// Finds which delimiters among pieces[from, to) belong together, and notes it in them.
function matchDelimiters(pieces, from, to) {
  const stack = [];
  const bottom = new Map();  // by character: nothing below it in the stack can match
  for (let p = from; p < to; p++) {
    const closer = pieces[p];
    if (closer.type !== 'delimiter' || closer.done) continue;
    while (closer.canClose && closer.n > 0) {
      let i = stack.length - 1;
      while (i >= (bottom.get(closer.c) ?? 0) && stack[i].c !== closer.c) i--;
      if (i < (bottom.get(closer.c) ?? 0)) {
        bottom.set(closer.c, stack.length);
        break;
      }
      const opener = stack[i];
      const used = closer.c === '~' || (opener.n >= 2 && closer.n >= 2) ? 2 : 1;
      const type = closer.c === '~' ? 'del' : used === 2 ? 'strong' : 'em';
      opener.opens.unshift(type);
      closer.closes.push(type);
      opener.n -= used;
      closer.n -= used;
      closer.from += used;
      stack.length = opener.n > 0 ? i + 1 : i;
      for (const [c, at] of bottom) if (at > stack.length) bottom.set(c, stack.length);
    }
    if (closer.canOpen && closer.n > 0) stack.push(closer);
  }
  for (let p = from; p < to; p++) if (pieces[p].type === 'delimiter') pieces[p].done = true;
}

function treeOf(pieces) {
  const root = {nodes: []};
  const open = [root];
  const begin = (node) => {
    open.at(-1).nodes.push(node);
    open.push(node);
  };
  for (const p of pieces) {
    if (p.type === 'begin') begin(p.node);
    else if (p.type === 'end') open.pop();
    else if (p.type === 'delimiter') {
      for (let i = 0; i < p.closes.length; i++) open.pop();
      if (p.n > 0) open.at(-1).nodes.push({type: 'text', s: p.s.slice(p.from, p.from + p.n), at: p.at.slice(p.from, p.from + p.n)});
      for (const type of p.opens) begin({type, nodes: []});
    } else open.at(-1).nodes.push(p);
  }
  return root.nodes;
}

export function parseInline(lines) {
  const pieces = new Scanner(joined(lines)).scan();
  matchDelimiters(pieces, 0, pieces.length);
  return treeOf(pieces);
}
