"""The compiler: its options, the stages that a model goes through, and `compile`.

It is not called ``compile``, as the function `tvmflow.compile` is.
"""
