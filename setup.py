"""The kernels, the one thing that setup.cfg cannot say. Without a C compiler the pure one serves."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(f"afterlog.{name}", [f"{name.replace('.', '/')}.pyx"], optional=True, extra_compile_args=["-O3"])
        for name in ("records._kernels", "index._packing")
    ]
)
