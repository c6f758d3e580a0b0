import pytest

from mixed_tables import columns


@pytest.fixture(params=["pandas", "polars"])
def library(request):
    return pytest.importorskip(request.param)


@pytest.fixture
def table(library):
    return library.DataFrame(columns())
