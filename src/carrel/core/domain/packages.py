"""Names of packages: what is installed for what is imported."""

from __future__ import annotations

#: Packages that are imported under another name, by that name.
INSTALLED_AS = {
    "Bio": "biopython",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "pkg_resources": "setuptools",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}


def package_of(module: str) -> str:
    """Return the name of the package from which a module is imported: its own in most cases."""
    top = module.partition(".")[0]
    return INSTALLED_AS.get(top, top)
