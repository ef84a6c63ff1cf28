// Markdown to blocks: the part of CommonMark and GitHub's tables that language models write. Every character keeps its place
// in the source, so that a piece of the page can be traced to the token it came from.
//
// Left out on purpose: HTML (it stays text), indented code and underlined headings (models indent and draw lines for other
// reasons), reference links (an answer could change what was already shown).
//
// A line is {s, at}: text, and the offset of its first character in the source.

const DEEPEST = 12;  // quotes and lists within each other; hostile text must not exhaust the stack

function linesOf(source, from) {
  const out = [];
  for (let at = from; at <= source.length;) {
    let end = source.indexOf('\n', at);
    if (end < 0) end = source.length;
    const cut = end > at && source[end - 1] === '\r' ? end - 1 : end;
    out.push({s: source.slice(at, cut), at});
    at = end + 1;
  }
  return out;
}

const isBlank = (line) => line.s.trim() === '';
const indentOf = (line) => {
  let n = 0;
  for (const c of line.s) {
    if (c === ' ') n += 1;
    else if (c === '\t') n += 4;
    else break;
  }
  return n;
};
// Without up to `columns` of indentation.
function outdented(line, columns) {
  let i = 0;
  for (let n = 0; n < columns && i < line.s.length; i++) {
    if (line.s[i] === ' ') n += 1;
    else if (line.s[i] === '\t') n += 4;
    else break;
  }
  return {s: line.s.slice(i), at: line.at + i};
}

const FENCE = /^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

// The cells of a row: {s, at} each.
function cellsOf(line) {
  const cells = [];
  const end = line.s.trimEnd().length;
  let from = line.s.length - line.s.trimStart().length;
  if (line.s[from] === '|') from += 1;
  let start = from, inCode = false;
  const push = (to) => {
    const raw = line.s.slice(start, to);
    const lead = raw.length - raw.trimStart().length;
    cells.push({s: raw.trim(), at: line.at + start + lead});
  };
  for (let i = from; i < end; i++) {
    const c = line.s[i];
    if (c === '\\') i += 1;
    else if (c === '`') inCode = !inCode;
    else if (c === '|' && !inCode) {
      push(i);
      start = i + 1;
    }
  }
  if (start < end) push(end);
  return cells;
}
function beginsTable(lines, i) {
  const next = lines[i + 1];
  if (!next || !lines[i].s.includes('|') || !next.s.includes('-') || !DELIMITERS.test(next.s)) return false;
  return cellsOf(lines[i]).length === cellsOf(next).length;
}

// Whether a line ends the paragraph before it.
function interrupts(lines, i) {
  const s = lines[i].s;
  if (FENCE.test(s) || HEADING.test(s) || QUOTE.test(s) || RULE.test(s) || beginsTable(lines, i)) return true;
  const item = ITEM.exec(s);
  if (!item || !item[3]) return false;
  return !/\d/.test(item[2]) || parseInt(item[2], 10) === 1;  // "1999. was a year" is no list
}

function fence(lines, i) {
  const [, mark, info] = FENCE.exec(lines[i].s);
  const indent = indentOf(lines[i]);
  const body = [];
  let next = i + 1, closed = false;
  for (; next < lines.length; next++) {
    const s = lines[next].s.trim();
    if (s.length >= mark.length && s === mark[0].repeat(s.length)) {
      closed = true;
      next += 1;
      break;
    }
    body.push(outdented(lines[next], indent));
  }
  return [{type: 'code', language: info.trim().split(/\s/)[0], lines: body, closed}, next];
}

function heading(line) {
  const [whole, marks] = HEADING.exec(line.s);
  let text = line.s.slice(whole.length).trimEnd();
  const bare = text.replace(/#+$/, '');
  if (bare !== text && (bare === '' || /[ \t]$/.test(bare))) text = bare.trimEnd();
  return {type: 'heading', level: marks.length, lines: [{s: text, at: line.at + whole.length}]};
}

function quote(lines, i, depth) {
  const body = [];
  for (; i < lines.length; i++) {
    const mark = QUOTE.exec(lines[i].s);
    if (mark) body.push({s: lines[i].s.slice(mark[0].length), at: lines[i].at + mark[0].length});
    else if (isBlank(lines[i]) || isBlank(body.at(-1)) || interrupts(lines, i)) break;
    else body.push(lines[i]);  // a paragraph that goes on without its mark
  }
  return [{type: 'quote', blocks: blocksOf(body, depth + 1)}, i];
}

const kindOf = (mark) => (/\d/.test(mark) ? mark.at(-1) : mark);

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i].s);
  const kind = kindOf(first[2]);
  const ordered = /\d/.test(first[2]);
  const out = {type: 'list', ordered, first: ordered ? parseInt(first[2], 10) : 1, items: [], tight: true};
  while (i < lines.length) {
    const item = ITEM.exec(lines[i].s);
    if (!item || kindOf(item[2]) !== kind || RULE.test(lines[i].s)) break;
    const marker = item[1].length + item[2].length;
    const gap = item[3] ? item[3].length : 1;
    const inside = marker + (gap > 4 ? 1 : gap);
    const enough = Math.min(inside, item[1].length + 2);  // models indent by two, whatever the marker's width
    const body = [outdented({s: lines[i].s.slice(marker), at: lines[i].at + marker}, gap > 4 ? 1 : gap)];
    let blank = false;
    for (i += 1; i < lines.length; i++) {
      if (isBlank(lines[i])) {
        blank = true;
        body.push(lines[i]);
        continue;
      }
      if (indentOf(lines[i]) >= enough) {
        if (blank) out.tight = false;
        body.push(outdented(lines[i], inside));
      } else if (!blank && !interrupts(lines, i) && !ITEM.test(lines[i].s)) {
        body.push(lines[i]);  // a paragraph that goes on without its indentation
      } else {
        break;
      }
      blank = false;
    }
    if (blank && i < lines.length && ITEM.test(lines[i].s) && kindOf(ITEM.exec(lines[i].s)[2]) === kind) out.tight = false;
    out.items.push({blocks: blocksOf(body, depth + 1)});
  }
  return [out, i];
}

function table(lines, i) {
  const align = cellsOf(lines[i + 1]).map(({s}) => (s.startsWith(':') ? (s.endsWith(':') ? 'center' : 'left') : s.endsWith(':') ? 'right' : ''));
  const out = {type: 'table', align, head: cellsOf(lines[i]), rows: []};
  for (i += 2; i < lines.length && !isBlank(lines[i]) && lines[i].s.includes('|'); i++)
    out.rows.push(cellsOf(lines[i]).slice(0, align.length));
  return [out, i];
}

function paragraph(lines, i) {
  const body = [outdented(lines[i], Infinity)];
  for (i += 1; i < lines.length && !isBlank(lines[i]) && !interrupts(lines, i); i++) body.push(outdented(lines[i], Infinity));
  return [{type: 'paragraph', lines: body}, i];
}

function blocksOf(lines, depth) {
  const out = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) {
      i += 1;
      continue;
    }
    const s = lines[i].s, start = lines[i].at;
    let block;
    if (FENCE.test(s)) [block, i] = fence(lines, i);
    else if (HEADING.test(s)) [block, i] = [heading(lines[i]), i + 1];
    else if (RULE.test(s)) [block, i] = [{type: 'rule'}, i + 1];
    else if (depth < DEEPEST && QUOTE.test(s)) [block, i] = quote(lines, i, depth);
    else if (depth < DEEPEST && ITEM.test(s)) [block, i] = list(lines, i, depth);
    else if (beginsTable(lines, i)) [block, i] = table(lines, i);
    else [block, i] = paragraph(lines, i);
    out.push({...block, start});
  }
  return out;
}

// The blocks of a source from an offset on; each has the offset `start` of its first line.
export function parseBlocks(source, from = 0) {
  return blocksOf(linesOf(source, from), 0);
}
