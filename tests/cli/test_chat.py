"""`d3d chat` as a user runs it: from a pipe, and with the keys of a terminal."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess

import pytest

from d3d_runtime import Engine, SamplingParams
from tests.cli.conftest import COMMAND, ENVIRONMENT, Pair, Terminal, d3d, edit_config, run_here

CTRL_C, CTRL_D = b"\x03", b"\x04"
LONG = ["--max-tokens", "3000", "--ignore-eos"]


def test_a_pipe_gets_the_answers_alone(pair: Pair):
    """One turn a line, each answered with all before it; empty lines are none."""
    engine, answers = Engine(pair.target, pair.drafter), []
    messages = [{"role": "system", "content": "Be brief."}]
    for text in ("What is 2 + 3?", "And 4 more?"):
        messages.append({"role": "user", "content": text})
        (answer,) = engine.generate(messages, SamplingParams(max_tokens=9))
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer.text)
    flags = ["--max-tokens", "9", "--system", "Be brief."]
    done = d3d("chat", *pair.flags, *flags, stdin="What is 2 + 3?\n\nAnd 4 more?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)
    assert "\x1b" not in done.stdout + done.stderr and "/help" not in done.stderr


def test_commands(pair: Pair, capsysbinary):
    """The same seed says the same, in every mode, and /reset is a new conversation."""
    lines = ["/stats", "/seed 7", "Go on", "/mode async", "/reset", "Go on", "/mode autoregressive", "/reset", "Go on"]
    lines += ["/seed random", "/seed", "/mode", "And on", "/stats", "/help", "/exit", "never read"]
    flags = ["--max-tokens", "9", "--temperature", "1", "--ignore-eos"]
    code, out, err = run_here(capsysbinary, "chat", *pair.flags, *flags, stdin="\n".join(lines).encode())
    assert code == 0, err
    answers = out.strip("\n").split("\n")
    assert len(answers) >= 4 and out.startswith(f"{answers[0]}\n" * 3)
    told = [line for line in err.splitlines() if line != "cut: --max-tokens reached"]
    assert told[0] == "no answer yet" and told[1] == "seed 7"
    assert told[2:6] == ["mode async", "a new conversation", "mode autoregressive", "a new conversation"]
    assert told[6:9] == ["seed random", "seed random", "mode autoregressive"]
    assert re.search(r"last answer: 9 tokens in .* tokens/s; (?!0 )\d+ prompt tokens were in the KV cache", told[9])
    assert "all answers (4): 36 tokens" in told[10] and "tau" in told[10] and "drafted ahead" in told[10]
    assert re.match(r"context: \d+ of 4096 tokens, mode autoregressive", told[11])
    assert [line.split()[0] for line in told[12:]] == ["/seed", "/mode", "/stats", "/reset", "/help", "/exit"]


def test_the_seed_of_a_greedy_chat_is_not_used(pair: Pair, capsysbinary):
    code, _, err = run_here(capsysbinary, "chat", *pair.flags, stdin=b"/seed 3\n")
    assert code == 0 and err == "seed 3; temperature 0 does not use it\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"/rest", "there is no command /rest; did you mean /reset?"),
        (b"/xyz", "there is no command /xyz; /help lists the commands"),
        (b"/mode fast", "mode: expected one of auto, autoregressive, sync, async, got 'fast'"),
        (b"/seed one", "/seed: expected an integer or 'random', got 'one'"),
        (b"/seed 99999999999999999999", "seed: expected None or a 64-bit integer"),
        (b"caf\xe9", "line 1 is not UTF-8 text (byte 0xe9 at offset 3)"),
        (b"word " * 3000, "takes 4096; /reset starts a new one"),
    ],
)
def test_the_first_error_ends_a_pipe(line, expected, pair: Pair, capsysbinary):
    code, out, err = run_here(capsysbinary, "chat", *pair.flags, stdin=line + b"\nnever read\n")
    assert (code, out) == (2, "") and err.startswith("d3d: ") and err.count("\n") == 1
    assert expected in err


def test_a_model_without_a_template(pair: Pair, tmp_path, capsysbinary):
    shutil.copytree(pair.target, tmp_path / "target")
    config = tmp_path / "target" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": None}))
    code, _, err = run_here(capsysbinary, "chat", "--target", tmp_path / "target")
    assert code == 2
    assert err == "d3d: target: this model has no chat template, so it cannot chat; generate takes plain text\n"


def test_modes_need_a_drafter(pair: Pair, capsysbinary):
    code, _, err = run_here(capsysbinary, "chat", "--target", pair.target, stdin=b"/mode sync\n")
    assert code == 2 and "'sync' needs a drafter" in err


# ---- in a terminal


def enter(terminal: Terminal, after: int, line: str) -> int:
    """Types a line once there is a prompt for it; the place behind it."""
    prompt = terminal.wait_for("> ", after=after)
    terminal.press(line.encode() + b"\n")
    return terminal.wait_for(f"{line}\n", after=prompt)


def interrupt_an_answer(terminal: Terminal, after: int) -> int:
    terminal.wait_until(lambda text: len(text) > after + 40)
    terminal.press(CTRL_C)
    return terminal.wait_for("interrupted", after=after)


def test_a_conversation_in_a_terminal(pair: Pair):
    """Ctrl-C ends an answer and not the chat, what was said stays, errors are told, Ctrl-D leaves."""
    terminal = Terminal("chat", *pair.flags, *LONG, "--temperature", "1", "--show-blocks", "--mode", "sync")
    place = terminal.wait_for("a context of 4096 tokens")
    place = interrupt_an_answer(terminal, enter(terminal, place, "Go on"))
    assert "\x1b[1;33m" in terminal.shown and "\x1b[32m" in terminal.shown  # bonus tokens, accepted ones
    place = terminal.wait_for("mode async\n", after=enter(terminal, place, "/mode async"))
    place = terminal.wait_for("did you mean /reset?", after=enter(terminal, place, "/rest"))
    place = interrupt_an_answer(terminal, enter(terminal, place, "And on"))
    place = terminal.wait_for("tokens, mode async", after=enter(terminal, place, "/stats"))
    assert re.search(r"; [1-9]\d* prompt tokens were in the KV cache", terminal.text)
    place = terminal.wait_for("> ", after=place)
    terminal.press(b"half a line")
    place = terminal.wait_for("half a line", after=place)
    terminal.press(CTRL_C)
    place = terminal.wait_for("> ", after=terminal.wait_for("Ctrl-D or /exit leaves", after=place))
    terminal.press(CTRL_D)
    assert terminal.wait() == 0, terminal.text
    assert "Traceback" not in terminal.text and "embedded pair" not in terminal.text


def test_a_full_context_offers_the_reset(pair: Pair, tmp_path):
    shutil.copytree(pair.target, tmp_path / "target")
    edit_config(tmp_path / "target", max_position_embeddings=64)
    flags = ["--target", tmp_path / "target", "--drafter", pair.drafter]
    terminal = Terminal("chat", *flags, "--max-tokens", "5000", "--ignore-eos")
    place = 0
    for _ in range(2):
        place = enter(terminal, place, "Go on")
        place = terminal.wait_for("cut: the context of 64 tokens is full; /reset starts a new one", after=place)
        place = enter(terminal, place, "And on")
        place = terminal.wait_for("the model takes 64; /reset starts a new one", after=place)
        place = terminal.wait_for("a new conversation", after=enter(terminal, place, "/reset"))
    enter(terminal, place, "/exit")
    assert terminal.wait() == 0


def test_the_embedded_pair_says_what_it_can():
    """In a terminal before the first question; a question of its kind is answered right."""
    terminal = Terminal("chat")
    terminal.wait_for("> ", after=terminal.wait_for("learned single word problems"))
    terminal.press(b"One box holds 14 bottles. There are 3 boxes. How many bottles are there in all?\n")
    terminal.wait_for("> ", after=terminal.wait_for("The answer is 42."))
    terminal.press(CTRL_D)
    assert terminal.wait() == 0


def test_ctrl_c_ends_a_piped_chat(pair: Pair):
    process = subprocess.Popen(
        [*COMMAND, "chat", *pair.flags, *LONG, "--mode", "autoregressive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    process.stdin.write(b"Go on\nAnd on\n")
    process.stdin.flush()
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=300)
    assert process.returncode == 130 and (first + rest).count(b"\n") >= 1
    assert notes == b"interrupted\n"
