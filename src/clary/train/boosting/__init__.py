"""SageMaker's built-in XGBoost algorithm: the program of jobs that name its image and no script of their own.

Where: the agent's launcher `built_in` starts `python -m clary.train.boosting` in the job's environment, which has
xgboost. No other part of Clary imports xgboost.

    __main__          the program: configuration, data, training, model, and the text of a failure
    errors            a mistake of the request or of the data
    content_types     formats that a channel may have
    channels          the two channels, as inputdataconfig.json names them, and their files
    numbers           ranges and lists that hyperparameters are parsed by
    hyperparameters   names, types and ranges of all hyperparameters
    matrices          CSV, libsvm and Parquet as arrays
    own_metrics       metrics that SageMaker adds to those of xgboost
    callbacks         lines of the log, checkpoints, the model of a stopped job
    training          one call of `xgboost.train`
    script_mode       functions that scripts of the same image call

Source: SageMaker developer guide, "XGBoost algorithm with Amazon SageMaker AI" and "XGBoost hyperparameters"; the
behaviour of the public container aws/sagemaker-xgboost-container.
"""
