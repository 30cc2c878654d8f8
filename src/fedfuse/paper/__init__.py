"""The paper's tables and figures, reproduced: ``fedfuse paper``."""
