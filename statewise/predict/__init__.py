"""What a trained model says of new data: classes and their probabilities, numbers, embeddings, likelihoods of texts.

``sw.predictor(run).predict(x)`` takes raw data; ``statewise predict`` is the same for files and for streams.
"""

from statewise.predict.answers import Answers as Answers
from statewise.predict.answers import Classes as Classes
from statewise.predict.answers import Embeddings as Embeddings
from statewise.predict.answers import Likelihoods as Likelihoods
from statewise.predict.answers import Numbers as Numbers
from statewise.predict.forecasts import Forecasts as Forecasts
from statewise.predict.predictor import Predictor as Predictor
from statewise.predict.predictor import predictor as predictor
from statewise.predict.stream import Stream as Stream
