"""What setup.cfg cannot say: the compiled modules, without which there is another way, and links that stay links."""

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist


class Sdist(sdist):
    """With the links of afterlog/, where it would have copies, and setup.cfg with its comments: tests read both."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for path in Path("afterlog").iterdir():
            if path.is_symlink():
                copy = Path(base_dir, path)
                shutil.rmtree(copy, ignore_errors=True)
                copy.symlink_to(path.readlink())
        Path(base_dir, "setup.cfg").unlink()
        shutil.copy("setup.cfg", base_dir)


setup(
    cmdclass={"sdist": Sdist},
    ext_modules=[
        Extension(f"afterlog.{name}", [path], optional=True, extra_compile_args=["-O3"])
        for name, path in (
            ("base._mapping", "base/_mapping.pyx"),
            ("fetch._objects", "fetch/_objects.pyx"),
            ("records._kernels", "records/_kernels.pyx"),
            ("index._packing", "index/_packing.pyx"),
        )
    ],
)
