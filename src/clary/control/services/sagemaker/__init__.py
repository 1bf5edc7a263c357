"""Operations of SageMaker's control plane."""
