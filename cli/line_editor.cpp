#include "cli/line_editor.h"

#include <histedit.h>
#include <signal.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <string_view>

namespace dsmoe::cli {

namespace {

constexpr int kHistory = 1000;  // messages
constexpr std::wstring_view kPasteEnds = L"\033[201~";

volatile sig_atomic_t typed_interrupt = 0;

unsigned char insert(EditLine* editor, const std::wstring& text) {
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char new_line(EditLine* editor, int) { return insert(editor, L"\n"); }

// What comes between a terminal's marks is text, with its line ends, and no keys.
unsigned char paste(EditLine* editor, int) {
  std::wstring text;
  for (wchar_t c = 0; !text.ends_with(kPasteEnds);) {
    if (el_wgetc(editor, &c) != 1) return insert(editor, text);
    text += c;
  }
  text.resize(text.size() - kPasteEnds.size());
  for (wchar_t& c : text)
    if (c == L'\r') c = L'\n';
  return insert(editor, text);
}

// Without a locale of UTF-8, the library drops every character beyond ASCII. Models read and write UTF-8 in any locale.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  wchar_t e_acute = 0;
  std::mbstate_t state{};
  if (std::mbrtowc(&e_acute, "\xc3\xa9", 2, &state) != 2) std::setlocale(LC_CTYPE, "C.UTF-8");
}

// Asks the terminal to mark what is pasted while a message is typed.
struct MarkedPaste {
  explicit MarkedPaste(bool marks) : on(marks) { send("\033[?2004h"); }
  ~MarkedPaste() { send("\033[?2004l"); }
  void send(const char* code) const {
    if (!on) return;
    std::fputs(code, stdout);
    std::fflush(stdout);
  }
  const bool on;
};

}  // namespace

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = history_init();
  const char* prompt = "";
  bool marks_paste = false;

  // (Wide strings, which libedit keeps as they are; of others it makes copies that it never gives back.)
  void add_key(const wchar_t* name, const wchar_t* help, unsigned char (*function)(EditLine*, int),
               std::initializer_list<const wchar_t*> keys) const {
    el_wset(editor, EL_ADDFN, name, help, function);
    for (const wchar_t* key : keys) el_wset(editor, EL_BIND, key, name, nullptr);
  }
};

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {
  use_utf8();
  Impl& i = *impl_;
  i.editor = el_init("dsmoe", stdin, stdout, stderr);
  el_set(i.editor, EL_CLIENTDATA, &i);
  el_set(
      i.editor, EL_PROMPT, +[](EditLine* editor) {
        void* data = nullptr;
        el_get(editor, EL_CLIENTDATA, &data);
        return const_cast<char*>(static_cast<Impl*>(data)->prompt);  // libedit wants it so, and reads it
      });
  el_set(i.editor, EL_EDITOR, "emacs");
  el_set(i.editor, EL_SIGNAL, 1);  // a signal finds the terminal as it was
  HistEvent event;
  ::history(i.history, &event, H_SETSIZE, kHistory);
  el_set(i.editor, EL_HIST, ::history, i.history);
  i.add_key(L"dsmoe-paste", L"insert what is pasted", paste, {L"\033[200~"});
  i.add_key(L"dsmoe-new-line", L"begin a new line", new_line, {L"\033\r", L"\033\n"});
  el_source(i.editor, nullptr);  // the user's own keys, ~/.editrc
  const char* terminal = std::getenv("TERM");
  i.marks_paste = terminal && *terminal && std::strcmp(terminal, "dumb") != 0;
}

LineEditor::~LineEditor() {
  history_end(impl_->history);
  el_end(impl_->editor);
}

std::optional<std::string> LineEditor::read(const char* prompt) {
  struct sigaction before {
  }, action{};
  action.sa_handler = [](int) { typed_interrupt = 1; };
  sigaction(SIGINT, &action, &before);
  const MarkedPaste marked(impl_->marks_paste);
  impl_->prompt = prompt;
  typed_interrupt = 0;
  int size = 0;
  const char* line = el_gets(impl_->editor, &size);
  // A stopped job that goes on (ctrl-Z, fg) may end the call too.
  while (!line && size < 0 && errno == EINTR && typed_interrupt == 0) line = el_gets(impl_->editor, &size);
  interrupted_ = typed_interrupt != 0;
  sigaction(SIGINT, &before, nullptr);
  if (!line || interrupted_) return {};
  std::string text(line, static_cast<std::size_t>(size));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void LineEditor::remember(const std::string& message) {
  HistEvent event;
  if (!message.empty()) ::history(impl_->history, &event, H_ENTER, message.c_str());
}

}  // namespace dsmoe::cli
