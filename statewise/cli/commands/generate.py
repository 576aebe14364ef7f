"""`statewise generate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from statewise.cli.options import Device, Exact, Folder, TokenizerOption, Weights, Which, device_for, may_be_exact
from statewise.errors import DataError


@may_be_exact
def generate(
    folder: Folder,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", help="A text to continue. Repeatable.")] = None,
    prompt_files: Annotated[
        list[str] | None, typer.Option("--prompt-file", help="The same, from a file; - is standard input. Repeatable.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most this many for each prompt.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the most likely tokens that together reach this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens with at least this share of the highest probability.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens that have appeared become less likely.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Default: a new one, shown at the end on a terminal.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. Repeatable.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before what follows.")] = False,
    log_probabilities: Annotated[
        bool, typer.Option("--log-probabilities", help="One JSON object for each token instead of text.")
    ] = False,
    state_in: Annotated[
        Path | None, typer.Option(help="Continue from a saved state; a prompt then follows what was read.")
    ] = None,
    state_out: Annotated[Path | None, typer.Option(help="Save the state after the prompt.")] = None,
    weights: Weights = None,
    draft: Annotated[
        Path | None, typer.Option(help="A smaller model that drafts tokens, which the model reads at once: faster.")
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="How many it drafts at a time. Default: 4.")] = None,
    draft_weights: Annotated[str | None, typer.Option(help="As --weights, for the draft.")] = None,
    n: Annotated[int, typer.Option("--n", help="Continuations of each prompt, which is read once.")] = 1,
    best_of: Annotated[
        int | None,
        typer.Option(help="Write this many of each prompt, and print the --n best, by mean log-probability."),
    ] = None,
    beams: Annotated[
        int | None, typer.Option(help="Search for the most likely continuation with this many beams; nothing is drawn.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="With --beams: 0 compares sums of log-probabilities, 1 their means. Default: 1."),
    ] = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
) -> None:
    """Continue each prompt, and print the text as the model writes it."""
    from statewise.cli.console import read_prompt, write_generated

    if log_probabilities and echo:
        raise typer.BadParameter(
            "--log-probabilities prints what is generated, one object for each token, and no prompt; leave out --echo",
            param_hint="--echo",
        )
    texts: list[str | bytes] = [*(prompts or []), *(read_prompt(path) for path in prompt_files or [])]
    if state_out is not None:
        from statewise.checkpoints.atomic import require_place

        if state_out.exists():
            raise DataError(f"{state_out} exists already; give --state-out a new name")
        require_place(state_out)  # before a long prompt is read
    from statewise.cli.model_folder import open_draft, open_model
    from statewise.data.synthetic_languages import SyntheticLanguageConfig
    from statewise.generation import Sampling, read
    from statewise.generation import generate as generate_tokens
    from statewise.generation.reading_file import load_reading, save_reading
    from statewise.training.run_folder import RUN_FILE, read_run

    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    Sampling(**sampling)  # an option out of range is told before a long prompt is read
    opened = open_model(
        folder,
        which=which,
        device=device_for(weights, device, exact),
        tokenizer=tokenizer,
        keep_quantised=weights is None and not exact,
    )
    model = opened.language_model
    if opened.own_tokenizer is None and (folder / RUN_FILE).is_file():
        data = read_run(folder).data
        if isinstance(data, SyntheticLanguageConfig):
            raise DataError(
                f"{folder} learned the language {data.task!r} and reads no text; continue ids from Python: "
                "statewise.generate(statewise.load(checkpoint), [[1, 2, 3]])"
            )
    tokens = opened.tokenizer
    small = None if draft is None else open_draft(draft, opened, device=device_for(draft_weights, device))
    state = None if state_in is None else load_reading(state_in, model=model)
    prompt = opened.prompts(texts) if state is None else texts or None
    if state_out is not None:
        state, prompt = read(model, prompt, tokenizer=tokens, state=state), None
        save_reading(state, state_out, model=model)
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    stream = generate_tokens(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop or (),
        tokenizer=tokens,
        state=state,
        weights=weights,
        draft=small,
        draft_tokens=draft_tokens,
        draft_weights=draft_weights,
        n=n,
        best_of=best_of,
        beams=beams,
        length_penalty=length_penalty,
        **sampling,
    )
    write_generated(
        stream,
        n_rows=n * (len(texts) or (1 if state is None else len(state.logits))),
        echo=[text for text in texts for _ in range(n)] if echo else [],
        seed=seed,
        log_probabilities=log_probabilities,
    )
