"""The compiler: its options, the stages that a model goes through, and `compile`.

The package is not called ``compile`` because `tvmflow.compile` is the function.
"""
