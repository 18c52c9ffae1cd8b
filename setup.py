"""The kernels, the one thing that setup.cfg cannot say. Without a C compiler the plain implementation serves."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("afterlog.log._kernels", ["log/_kernels.pyx"], optional=True, extra_compile_args=["-O3"]),
    ]
)
