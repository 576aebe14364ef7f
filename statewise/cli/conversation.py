"""A conversation in a terminal, or through a pipe: lines in, answers out as they come."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from statewise.errors import StatewiseError
from statewise.generation.chat import Chat

HELP = """\
/undo        remove the last question and its answer
/reset       start again
/save FILE   save the conversation, with the model's state
/load FILE   continue a conversation that you saved
/help        show this list
/exit        leave, as Ctrl-D does
End a line with \\ to continue it on the next. To say something that begins with /, type //. Ctrl-C stops an answer."""
PROMPT, MORE = "> ", "... "


class Conversation:
    """Reads lines until they end. On a terminal there is a prompt. Everything but answers goes to standard error."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._commands: dict[str, Callable[[str], None]] = {
            "/undo": self._undo,
            "/reset": self._reset,
            "/save": self._save,
            "/load": self._load,
            "/help": lambda name: self._tell(HELP),
        }
        self._on_terminal, self._to_terminal = sys.stdin.isatty(), sys.stdout.isatty()

    def run(self) -> None:
        """Until /exit or the end of the input. A mistake gives one line on standard error, and you can try again."""
        if self._on_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (lines can then be edited, and called back)
            self._tell("Type a message; /help lists the commands.")
        while True:
            try:
                line = self._line()
                if line is None or line == "/exit":
                    return
                self._take(line)
            except StatewiseError as error:
                self._tell(f"statewise: error: {error}")
            except KeyboardInterrupt:
                if not self._on_terminal:
                    raise
                self._tell("")  # a line that was begun is dropped

    def _take(self, line: str) -> None:
        """One line, said or obeyed."""
        if not line.strip():
            return
        word, _, name = line.partition(" ")
        if line.startswith("/") and not line.startswith("//"):
            command = self._commands.get(word)
            if command is None:
                self._tell(f"{word} is not a command; /help lists them. To say something that begins with /, type //")
            elif word in ("/save", "/load") and not name.strip():
                self._tell(f"{word} needs a file; type {word} FILE")
            else:
                command(name.strip())
            return
        self._say(line[1:] if line.startswith("//") else line)

    def _say(self, text: str) -> None:
        answer = self.chat.say(text)
        try:
            for piece in answer:
                sys.stdout.write(_shown(piece) if self._to_terminal else piece)
                sys.stdout.flush()
        except KeyboardInterrupt:  # what has come until then is the answer
            answer.close()  # type: ignore[attr-defined]
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _undo(self, name: str) -> None:
        said = self.chat.undo()
        self._tell("there is no question to remove" if said is None else f"removed: {_shown(said)}")

    def _reset(self, name: str) -> None:
        self.chat.reset()
        self._tell("started again")

    def _save(self, name: str) -> None:
        self.chat.save(name)
        self._tell(f"saved in {name}")

    def _load(self, name: str) -> None:
        self.chat.load(name)
        for message in self.chat.messages:
            self._tell(f"[{message['role']}] {_shown(message['content'])}")

    def _line(self) -> str | None:
        """One line, or several that end in a backslash; None at the end of the input."""
        lines: list[str] = []
        while True:
            if self._on_terminal:
                try:
                    line = input(MORE if lines else PROMPT)
                except EOFError:
                    return None
            else:
                read = sys.stdin.readline()
                if not read:
                    return "\n".join(lines) if lines else None
                line = read.rstrip("\n")
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _shown(text: str) -> str:
    """Without what would command a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
