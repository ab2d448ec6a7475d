"""`d3d generate` as a user runs it: in a pipe, in a terminal, and with Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest
import torch

from d3d_runtime import Engine
from d3d_runtime.cli.blocks import ACCEPTED, AFTER_MISS, BONUS, BlockPainter, legend
from d3d_runtime.cli.streaming import CtrlC
from d3d_runtime.metrics import Metrics
from d3d_runtime.request import RequestOutput
from d3d_runtime.training.problems import generate
from tests.cli.conftest import COMMAND, ENVIRONMENT, ESCAPE, Pair, Terminal, d3d, d3d_in_terminal, run_here

GREEN, MAGENTA, YELLOW = "\x1b[32m", "\x1b[35m", "\x1b[1;33m"


def test_a_pipe_gets_the_text_alone(pair: Pair):
    done = d3d("generate", "What is 2 + 3?", *pair.flags, "--max-tokens", "12", "--show-blocks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and "\x1b" not in done.stdout + done.stderr
    assert "tokens/s" in done.stderr and "tau" in done.stderr and "accepted in a block" in done.stderr
    assert "tokens/s" not in done.stdout


def test_a_terminal_shows_blocks_in_colour_and_the_same_text_when_plain(pair: Pair):
    arguments = ["generate", "--problem", "3", *pair.flags, "--max-tokens", "24", "--mode", "async"]
    code, shown = d3d_in_terminal(*arguments, "--show-blocks", "--compare")
    assert code == 0, shown
    assert YELLOW in shown and GREEN in shown
    plain = ESCAPE.sub("", shown)
    question = next(generate(3, 1, "held_out_wordings")).question
    assert question in plain.replace("\n", " ") and "drafted after a miss" in plain
    assert "the same text, token for token" in plain and "speed-up" in plain
    assert re.search(r"The answer is (right|wrong: it is \d+)\.", plain)
    text = d3d(*arguments).stdout
    assert text.strip("\n") in plain


def test_colours_of_a_round_with_a_hit_and_a_miss():
    """Without a tokenizer a token shows as its id; the round behind a miss is painted as drafted after it."""

    def increment(token_ids: list[int], misses: int) -> RequestOutput:
        return RequestOutput("0", None, token_ids, None, 0, None, Metrics(misses=misses))

    painter = BlockPainter(None, [], "async")
    rounds = [increment([5, 6], 0), increment([7], 1), increment([8, 9, 10], 1)]
    painted = [
        [(span.style, text.plain[span.start : span.end]) for span in text.spans] for text in map(painter.paint, rounds)
    ]
    assert painted == [
        [(ACCEPTED, "5 "), (BONUS, "6 ")],
        [(BONUS, "7 ")],
        [(AFTER_MISS, "8 "), (AFTER_MISS, "9 "), (BONUS, "10 ")],
    ]
    assert "no blocks" in legend("autoregressive").plain


def test_json_is_one_object_with_everything(pair: Pair, capsysbinary):
    arguments = ["generate", "1 2 300", "--token-ids", *pair.flags, "--max-tokens", "9", "--temperature", "1"]
    found = []
    for mode in ("autoregressive", "sync"):
        code, out, err = run_here(capsysbinary, *arguments, "--mode", mode, "--seed", "7", "--json", "--logprobs", "2")
        assert code == 0, err
        found.append(json.loads(out))
    plain, sync = found
    assert plain["token_ids"] == sync["token_ids"] and len(sync["token_ids"]) == len(sync["logprobs"]) <= 9
    assert sync["seed"] == 7 and sync["mode"] == "sync" and sync["finish_reason"] in ("length", "stop")
    rounds = sync["metrics"]["acceptance_histogram"]
    assert sum(rounds.values()) == sync["metrics"]["rounds"] < plain["metrics"]["rounds"]
    assert sum((int(accepted) + 1) * count for accepted, count in rounds.items()) == len(sync["token_ids"])


def test_a_jsonl_file_answers_in_order_one_object_a_line(pair: Pair, tmp_path, capsysbinary):
    file = tmp_path / "prompts.jsonl"
    lines = ["What is 2 + 3?", [5, 6, 7], [{"role": "user", "content": "Hi"}], {"prompt": "x"}]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    code, out, err = run_here(
        capsysbinary,
        "generate",
        "--prompt-file",
        file,
        *pair.flags,
        "--max-tokens",
        "4",
        "--n",
        "2",
        "--json",
    )
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in answers] == [line for line in [*lines[:3], "x"] for _ in range(2)]
    assert len({answer["request_id"] for answer in answers}) == 8


def test_stdin_and_raw_text(pair: Pair, capsysbinary):
    """The template makes another prompt, so it makes another text."""
    asked = ["generate", "-", *pair.flags, "--max-tokens", "6", "--json", "--ignore-eos"]
    told = [run_here(capsysbinary, *asked, *more, stdin=b"What is 2 + 3?") for more in ([], ["--raw"])]
    assert [code for code, _, _ in told] == [0, 0]
    chat, raw = (json.loads(out) for _, out, _ in told)
    assert chat["prompt"] == raw["prompt"] == "What is 2 + 3?" and chat["token_ids"] != raw["token_ids"]


def test_threads(pair: Pair, capsysbinary):
    code, _, err = run_here(capsysbinary, "generate", "x", *pair.flags, "--max-tokens", "2", "--threads", "2")
    assert code == 0 and torch.get_num_threads() == 2, err


def test_ctrl_c_ends_cleanly_with_what_was_generated(pair: Pair):
    arguments = ["generate", "Go on", *pair.flags, "--max-tokens", "4000", "--ignore-eos", "--mode", "async"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=300)
    assert process.returncode == 130
    assert first + rest and b"interrupted" in notes and b"tokens/s" in notes and b"Traceback" not in notes


def test_ctrl_c_in_a_terminal(pair: Pair):
    """The key, not the signal: the round that runs is finished and shown, then come legend and closing line."""
    flags = ["--max-tokens", "4000", "--ignore-eos", "--temperature", "1", "--show-blocks"]
    terminal = Terminal("generate", "--problem", "3", *pair.flags, *flags)
    question = next(generate(3, 1, "held_out_wordings")).question.split()[-1]
    asked = terminal.wait_for(question)
    terminal.wait_until(lambda text: len(text) > asked + 40)
    terminal.press(b"\x03")
    assert terminal.wait() == 130
    assert "interrupted" in terminal.text and "accepted in a block" in terminal.text
    assert "Traceback" not in terminal.text


def test_ctrl_c_waits_for_the_round_once():
    """The first is noted where a round may run, the second interrupts; afterwards all is as before."""
    before = signal.getsignal(signal.SIGINT)
    with CtrlC() as ctrl_c:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        ctrl_c.may_wait = True
        signal.raise_signal(signal.SIGINT)
        assert ctrl_c.pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_a_batch_with_what_it_has(pair: Pair, tmp_path, monkeypatch, capsysbinary):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"Go on"\n"And on"\n')
    step, steps = Engine.step, iter(range(100))

    def pressed_at_the_third(engine: Engine) -> list[RequestOutput]:
        if next(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(Engine, "step", pressed_at_the_third)
    flags = ["--max-tokens", "500", "--ignore-eos", "--mode", "autoregressive", "--json"]
    code, out, err = run_here(capsysbinary, "generate", "--prompt-file", file, *pair.flags, *flags)
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 130 and "0 of 2 requests" in err
    assert [(answer["finish_reason"], len(answer["token_ids"])) for answer in answers] == [("interrupted", 3)] * 2


def test_a_reader_that_leaves_hears_no_complaint(pair: Pair):
    arguments = ["generate", "Go on", *pair.flags, "--max-tokens", "300", "--ignore-eos"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    process.stdout.read(1)
    process.stdout.close()
    assert b"Error" not in process.stderr.read() and process.wait(timeout=300) == 1


@pytest.mark.parametrize("flags", [["--n", "2", "--compare"], ["--n", "2", "--show-blocks"]])
def test_one_answer_at_a_time_where_it_must_be(pair: Pair, capsysbinary, flags):
    code, _, err = run_here(capsysbinary, "generate", "x", *pair.flags, *flags)
    assert code == 2 and "one prompt and one answer" in err
