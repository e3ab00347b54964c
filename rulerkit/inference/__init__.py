"""Who answers: the interface of a model, and the engines behind it.

Open `model` first."""
