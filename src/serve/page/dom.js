// Elements from code. Text is always text: nothing on this page makes markup from a string.

// h('p', {class: 'note', onclick: f, 'aria-label': 'x'}, 'text', element, null): null and false children are left out.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'hidden') element[name] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// Strokes on a grid of 24 by 24.
const ICONS = {
  menu: 'M4 7h16M4 12h16M4 17h16',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h11v11H9zM15 9V4H4v11h5',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4',
  again: 'M19 12a7 7 0 1 1-2.1-5M19 4v4h-4',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  save: 'M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 20h14',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.5V5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3l1.8 1.8M16.9 16.9l1.8 1.8M18.7 5.3l-1.8 1.8M7.1 16.9l-1.8 1.8',
  moon: 'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
  auto: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
  sliders: 'M4 8h9M17 8h3M15 5.5v5M4 16h3M11 16h9M9 13.5v5',
  grid: 'M4.5 4.5h4v4h-4zM10 4.5h4v4h-4zM15.5 4.5h4v4h-4zM4.5 10h4v4h-4zM10 10h4v4h-4zM15.5 10h4v4h-4zM4.5 15.5h4v4h-4zM10 15.5h4v4h-4zM15.5 15.5h4v4h-4z',
  close: 'M6 6l12 12M18 6L6 18',
  left: 'M14.5 6l-6 6 6 6',
  right: 'M9.5 6l6 6-6 6',
  down: 'M6 9.5l6 6 6-6',
  columns: 'M4 5h7v14H4zM13 5h7v14h-7z',
  warn: 'M12 4l9 16H3zM12 10v5M12 17.5v.5',
};

export function icon(name) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  for (const [key, value] of [['viewBox', '0 0 24 24'], ['class', 'icon'], ['aria-hidden', 'true']]) svg.setAttribute(key, value);
  const path = document.createElementNS(ns, 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

// A button with an icon and a name that is read out and shown on hover.
export function iconButton(name, label, onclick, props = {}) {
  return h('button', {type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...props}, icon(name));
}

// Calls `run` once in the next frame, however often it is asked for until then.
export function perFrame(run) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    // A hidden tab has no frames, but its answers go on.
    const later = document.hidden ? (f) => setTimeout(f, 100) : requestAnimationFrame;
    later(() => {
      asked = false;
      run();
    });
  };
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {  // pages over plain HTTP from another machine have no clipboard
    const area = h('textarea', {class: 'unseen', value: text});
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

export function copyButton(text) {
  const button = iconButton('copy', 'Copy', async () => {
    if (!(await copyText(text()))) return;
    button.replaceChildren(icon('check'));
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}
