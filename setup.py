"""The compiled modules, the one thing that setup.cfg cannot say. Without a C compiler there is another way for each."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(f"afterlog.{name}", [path], optional=True, extra_compile_args=["-O3"])
        for name, path in (
            ("_mapping", "afterlog/_mapping.pyx"),
            ("fetch._objects", "fetch/_objects.pyx"),
            ("records._kernels", "records/_kernels.pyx"),
            ("index._packing", "index/_packing.pyx"),
        )
    ]
)
