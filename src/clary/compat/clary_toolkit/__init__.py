"""The modules of our `sagemaker_training` and `sagemaker_containers`, which scripts ask about their job.

Both packages show these modules under their own names. The modules need the standard library alone (the encoders NumPy)
and run in Python 3.8, because images of scikit-learn have old interpreters.
Source: sagemaker-training 5.1.4 and sagemaker-containers 2.8.6, for names and meanings.
"""
