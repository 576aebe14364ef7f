"""`statewise chat`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statewise.cli.options import Device, Exact, Folder, TokenizerOption, Weights, Which, device_for, may_be_exact


@may_be_exact
def chat(
    folder: Folder,
    system: Annotated[str | None, typer.Option(help="A first message that tells the model how to behave.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most this many in an answer.")] = 1024,
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the most likely token. Default: as published, else 0.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k most likely tokens. Default: as published.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the most likely tokens that together reach this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens with at least this share of the highest probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens that have appeared become less likely. Default: as published.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="For the first answer; each later answer uses the next number.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End an answer before this text. Repeatable.")] = None,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A chat template (Jinja). Default: the published one.")
    ] = None,
    load: Annotated[Path | None, typer.Option(metavar="FILE", help="Continue a conversation from /save.")] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
) -> None:
    """Talk with an instruction model. /help lists what else you can type."""
    from statewise.cli.conversation import Conversation
    from statewise.cli.model_folder import open_model
    from statewise.conventions.published import check_template, read_text
    from statewise.generation import Sampling
    from statewise.generation.chat import Chat

    given: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    Sampling(
        temperature=1.0 if temperature is None else temperature,
        repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        **given,
    )  # an option out of range is told before a model is read
    text = None if template is None else check_template(read_text(template), template)
    opened = open_model(
        folder,
        which=which,
        device=device_for(weights, device, exact),
        tokenizer=tokenizer,
        keep_quantised=weights is None and not exact,
    )
    talk = Chat(
        opened.language_model,
        opened.tokenizer,
        template=text,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop or (),
        weights=weights,
        **given,
    )
    if load is not None:
        talk.load(load)
    Conversation(talk).run()
