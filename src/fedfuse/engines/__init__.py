"""Where devices compute."""

from fedfuse.utils.lazy import lazy_names

# Imported when first asked for: a device needs one of these, and its process may live for one message only.
__getattr__ = lazy_names(
    __name__,
    {
        "attacks": "Attacks",
        "base": "Engine EngineWrapper",
        "factory": "EngineSpec",
        "faults": "Faults",
        "in_process": "InProcess",
        "latency": "Latency",
        "workers": "Workers",
    },
)
