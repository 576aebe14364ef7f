"""Our language models in EleutherAI's lm-evaluation-harness (extra ``eval``), and its tasks on our command line.

Importing this package registers the model "statewise":

    import lm_eval
    import statewise.integrations.lm_eval
    lm_eval.simple_evaluate("statewise", model_args={"pretrained": "runs/demo"}, tasks=["lambada_openai"])
"""

from statewise.integrations.lm_eval.wrapper import StatewiseLM as StatewiseLM
