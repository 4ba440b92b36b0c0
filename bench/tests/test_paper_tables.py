"""The paper's data sets: parsers on fragments in the raw format, copies on disk, downloads that fail and succeed."""

import io
import math
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import gamma, kv

from cagp.cli import main
from cagp.data import read_table
from cagp_bench.data import PAPER_TABLES, draw_targets, fetch, gap_data, matern32_prior, uniform_data
from cagp_bench.data.downloads import DigestError, DownloadError, check_digest, digest_file, digest_of, download
from cagp_bench.data.paper_tables import cache_folder, prepared_file

VOICE = ",".join(PAPER_TABLES["parkinsons"].names[5:-1])
RAW = {
    "parkinsons": f"subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,{VOICE}\n"
    "1,72,0,5.6431,28.199,34.398,0.00662,3.38e-05,0.00401,0.00317,0.01204,0.02565,0.23,0.01438,0.01309,0.01662,"
    "0.04314,0.01429,21.64,0.41888,0.54842,0.16006\n"
    "2,60,1,-1.5,20.5,25.25,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n",
    "bike": "instant,dteday,season,yr,mnth,hr,holiday,weekday,workingday,weathersit,temp,atemp,hum,windspeed,casual,"
    "registered,cnt\n"
    "1,2011-01-01,1,0,1,0,0,6,0,1,0.24,0.2879,0.81,0,3,13,16\n"
    "17000,2012-12-16,4,1,12,3,0,0,0,2,0.34,0.3333,0.87,0.1642,2,30,32\n",
    "protein": "RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9\n17.284,13558.3,4305.35,0.31754,162.173,1872791.85,215.359,4287.87,"
    "102,27.0302\n0,1,2,3,4,5,6,7,8,9\n",
    "road": "144552912,9.3498486,56.7408757,17.0527715677876\n144552912,9.3501884,56.7406785,17.614840244389\n",
    "power": "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;Sub_metering_1;"
    "Sub_metering_2;Sub_metering_3\n"
    "16/12/2006;17:24:00;4.216;0.418;234.840;18.400;0.000;1.000;17.000\n"
    "16/12/2006;17:25:00;?;?;?;?;?;?;\n"
    "17/12/2006;17:24:00;5.360;0.436;233.630;23.000;0.000;1.000;16.000\n",
}


def network(name, *changes):
    """A line of the KEGG file: a name and 28 numbers, some of them changed."""
    values = {j: str(j) for j in range(1, 29)} | {21: "0.5", 10: "0", **dict(changes)}
    return ",".join([name, *values.values()])


RAW["keggu"] = "\n".join(
    [
        network("one", (28, "2")),
        network("gap", (4, "?")),
        network("gap"),  # of a network that is left out
        network("share", (21, "1.5")),
        network("two", (4, "0.25"), (28, "8")),
    ]
)


def columns(name, text=None):
    return PAPER_TABLES[name].read(io.BytesIO((text or RAW[name]).encode()))


# ---- parsers ----


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_a_fragment_of_the_raw_file_gives_two_rows_of_all_inputs(name):
    found = columns(name)
    assert found.X.shape == (2, PAPER_TABLES[name].num_dims)
    assert found.y.shape == (2,)
    assert np.isfinite(found.X).all()


def test_parkinsons_predicts_the_total_score():
    found = columns("parkinsons")
    assert found.y.tolist() == [34.398, 25.25]
    assert found.X[0, :7].tolist() == [1, 72, 0, 5.6431, 28.199, 0.00662, 3.38e-05]
    assert found.X[1, -1] == 16


def test_bike_predicts_the_logarithm_of_the_count_and_counts_days():
    found = columns("bike")
    assert found.y.tolist() == [math.log(16), math.log(32)]
    assert found.X[0].tolist() == [1, 0, 1, 0, 1, 0, 0, 6, 0, 1, 0.24, 0.2879, 0.81, 0, 3, 13]
    assert found.X[1, 1] == (pd.Timestamp("2012-12-16") - pd.Timestamp("2011-01-01")).days
    assert np.allclose(np.exp(found.y), found.X[:, 14] + found.X[:, 15])  # two inputs determine the target


def test_protein_takes_the_logarithm_of_one_plus_the_deviation():
    found = columns("protein")
    assert found.y.tolist() == [math.log(1 + 17.284), 0.0]
    assert found.X[1].tolist() == list(range(1, 10))


def test_kegg_leaves_out_networks_with_gaps_or_impossible_shares_and_the_constant_column():
    found = columns("keggu")
    assert found.y.tolist() == [math.log(2), math.log(8)]
    assert found.X[0].tolist() == [*range(1, 10), *range(11, 21), 0.5, *range(22, 28)]
    assert found.X[1, 3] == 0.25


def test_road_leaves_out_the_number_of_the_road():
    found = columns("road")
    assert found.X.tolist() == [[9.3498486, 56.7408757], [9.3501884, 56.7406785]]
    assert found.y.tolist() == [17.0527715677876, 17.614840244389]


def test_power_leaves_out_rows_with_gaps_and_ends_with_the_days():
    found = columns("power")
    assert found.y.tolist() == [4.216, 5.360]
    assert found.X.tolist() == [[0.418, 234.84, 18.4, 0, 1, 17, 0], [0.436, 233.63, 23, 0, 1, 16, 1]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("parkinsons", "age,sex\n1,2\n", r"parkinsons_updrs.data lacks the columns subject#, test_time"),
        ("road", "1,2,3\n", "3D_spatial_network.txt has 3 columns, expected 4"),
        ("keggu", "a,1,2\n", r"Reaction Network \(Undirected\).data has 3 columns, expected 29"),
    ],
)
def test_another_file_is_refused(name, text, message):
    with pytest.raises(ValueError, match=message):
        columns(name, text)


@pytest.mark.parametrize("name", ["parkinsons", "bike", "protein", "keggu"])
def test_prepared_copies_have_the_sizes_of_the_paper(data_directory, name):
    if not (data_directory / f"{name}.npz").is_file():
        pytest.skip(f"no {name}.npz in {data_directory}")
    found = fetch(name, data_dir=data_directory)
    sizes = {"parkinsons": (5288, 21), "bike": (15_642, 16), "protein": (41_157, 9), "keggu": (57_248, 26)}
    # The paper's Table 1 gives the training rows of 90/10 splits, rounded down or up.
    assert abs(0.9 * len(found.y) - sizes[name][0]) <= 1
    assert found.X.shape[1] == sizes[name][1]
    with np.load(data_directory / f"{name}.npz") as file:
        assert np.array_equal(found.X.numpy(), file["X"].astype(np.float64))


def test_fragments_of_road_and_power_agree_with_the_prepared_ones(data_directory):
    for name, file in (("road", "3droad_head"), ("power", "power_head")):
        if not (data_directory / f"{file}.npz").is_file():
            pytest.skip(f"no {file}.npz in {data_directory}")
        with np.load(data_directory / f"{file}.npz") as prepared:
            X, y = prepared["X"][:2].astype(np.float64), prepared["y"][:1].astype(np.float64)
        raw = columns(name)
        assert raw.y[0] == pytest.approx(y[0], rel=1e-6)
        if name == "road":  # the fragment is centred
            assert raw.X[1] - raw.X[0] == pytest.approx(X[1] - X[0], abs=1e-6)
        else:
            assert raw.X[0] == pytest.approx(X[0], rel=1e-6)


# ---- copies on this machine ----


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Tables of two rows, a cache of their own, no variable, and no addresses."""
    for name, table in list(PAPER_TABLES.items()):
        monkeypatch.setitem(PAPER_TABLES, name, table._replace(num_rows=2, addresses=()))
    monkeypatch.setenv("CAGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CAGP_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("form", ["raw", "zip", "npz"])
def test_a_copy_is_found_in_every_form(small, form):
    table = PAPER_TABLES["road"]
    if form == "raw":
        (small / table.raw_file).write_text(RAW["road"])
    elif form == "zip":
        with zipfile.ZipFile(small / "road.zip", "w") as archive:
            archive.writestr(f"inside/{table.raw_file}", RAW["road"])
    else:
        np.savez(small / "road.npz", X=columns("road").X, y=columns("road").y)
    found = fetch("road", data_dir=small)
    assert found.names == ("longitude", "latitude", "altitude")
    assert found.X.dtype == torch.float64
    assert found.y.tolist() == columns("road").y.tolist()


def test_the_variable_names_the_folder_and_a_missing_table_says_what_to_put_where(small, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"Put 3D_spatial_network.txt.*archive.ics.uci.edu/dataset/246 into a"):
        fetch("road", allow_download=False)
    with pytest.raises(FileNotFoundError, match="which is not a folder"):
        fetch("road", data_dir=small / "nowhere")
    (small / "3D_spatial_network.txt").write_text(RAW["road"])
    monkeypatch.setenv("CAGP_DATA", str(small))
    assert len(fetch("road", allow_download=False).y) == 2
    with pytest.raises(ValueError, match="the data set is 'roads', expected one of parkinsons, bike"):
        fetch("roads")


def test_a_copy_of_another_size_or_with_gaps_is_refused(small):
    np.savez(small / "road.npz", X=np.zeros((3, 2)), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"gives 3 rows of 2 inputs.*expected 2 rows of 2 inputs"):
        fetch("road", data_dir=small)
    np.savez(small / "road.npz", X=np.full((2, 2), np.nan), y=np.zeros(2))
    with pytest.raises(ValueError, match="values that are missing"):
        fetch("road", data_dir=small)
    (small / "road.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="cannot be read as an NPZ file"):
        fetch("road", data_dir=small)


def test_commands_know_data_sets_by_name(small, capsys):
    (small / "parkinsons_updrs.data").write_text(RAW["parkinsons"])
    path = prepared_file("parkinsons", small)
    frame = read_table(path)
    assert list(frame.columns) == [*PAPER_TABLES["parkinsons"].names[:-1], "y"]
    assert prepared_file("parkinsons", small) == path
    made = path.stat().st_mtime_ns
    (small / "parkinsons_updrs.data").write_text(RAW["parkinsons"].replace("25.25", "26"))
    assert prepared_file("parkinsons", small) != path  # another source is another file
    assert path.stat().st_mtime_ns == made
    assert main(["fit", "dataset:bikes", "--out", str(small / "model.cagp")]) == 1
    assert "the data set is 'bikes', expected one of parkinsons" in capsys.readouterr().err


@pytest.mark.slow
def test_fits_and_benchmarks_know_data_sets_by_name(small, monkeypatch, capsys):
    X = np.random.default_rng(0).uniform(size=(40, 2))
    monkeypatch.setitem(PAPER_TABLES, "road", PAPER_TABLES["road"]._replace(num_rows=40))
    np.savez(small / "road.npz", X=X, y=X.sum(1))
    command = ["fit", "dataset:road", "--data-dir", str(small), "--test-fraction", "0", "--max-epochs", "2"]
    assert main([*command, "--out", str(small / "model.cagp")]) == 0
    assert main(["info", str(small / "model.cagp")]) == 0
    assert "longitude" in capsys.readouterr().out
    command = ["bench", "neighbours", "dataset:road", "--data-dir", str(small), "--methods", "scan", "--points", "5"]
    assert main([*command, "--n-neighbors", "3", "--json"]) == 0
    assert '"rows": 40' in capsys.readouterr().out


def test_the_cache_follows_the_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("CAGP_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("CAGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "cagp"


# ---- downloads ----


class Server:
    """A server on this machine whose answers are given by path, one after the other; the last one is repeated."""

    def __init__(self):
        self.answers, self.asked = {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                given = outer.answers.get(self.path, [(404, b"", None)])
                status, body, length = given.pop(0) if len(given) > 1 else given[0]
                self.send_response(status)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def address(self, path):
        return f"http://127.0.0.1:{self.server.server_address[1]}{path}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def get(server, path, file, **options):
    download([server.address(path)], file, delay=0.0, progress=False, **options)


BODY = b"1,2,3,4\n" * 20_000


def test_a_file_arrives_whole_and_its_digest_is_kept(server, tmp_path):
    server.answers["/a"] = [(200, BODY, len(BODY))]
    get(server, "/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert digest_file(tmp_path / "a").read_text() == f"{digest_of(tmp_path / 'a')}  a\n"
    check_digest(tmp_path / "a")
    (tmp_path / "a").write_bytes(BODY[:-1])
    with pytest.raises(DigestError, match=r"of its first download \(a.sha256\); remove the file to download it again"):
        check_digest(tmp_path / "a")


def test_a_truncated_file_is_tried_again_and_never_written(server, tmp_path):
    server.answers["/a"] = [(200, BODY[:1000], len(BODY)), (200, BODY, len(BODY))]
    get(server, "/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert server.asked == ["/a", "/a"]
    server.answers["/b"] = [(200, BODY[:1000], len(BODY))]
    with pytest.raises(DownloadError, match="the file ends after 1,000 of 160,000 bytes"):
        get(server, "/b", tmp_path / "b", tries=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.sha256"]


def test_a_server_with_an_error_is_tried_again_one_without_the_file_is_not(server, tmp_path):
    server.answers["/busy"] = [(503, b"", 0), (200, b"here", 4)]
    get(server, "/busy", tmp_path / "busy")
    assert server.asked == ["/busy", "/busy"]
    server.asked.clear()
    with pytest.raises(DownloadError, match="/absent: 404 Not Found"):
        get(server, "/absent", tmp_path / "absent")
    assert server.asked == ["/absent"]
    addresses = [server.address("/absent"), server.address("/busy")]
    download(addresses, tmp_path / "second", delay=0.0, progress=False)
    assert (tmp_path / "second").read_bytes() == b"here"


def test_another_file_than_the_known_one_is_not_written(server, tmp_path):
    server.answers["/a"] = [(200, b"changed", 7)]
    with pytest.raises(DigestError, match=r"has the SHA-256 digest .*, expected 0000.*; nothing was written"):
        get(server, "/a", tmp_path / "a", sha256="0" * 64)
    assert not list(tmp_path.iterdir())
    digest_file(tmp_path / "a").write_text("1" * 64 + "  a\n")  # of an earlier download
    with pytest.raises(DigestError, match="expected 1111"):
        get(server, "/a", tmp_path / "a")


def test_a_server_that_is_not_there_is_an_error_that_says_so(server, tmp_path):
    address = server.address("/a")
    server.close()
    with pytest.raises(DownloadError, match="refused"):
        download([address], tmp_path / "a", tries=2, delay=0.0, progress=False)
    server.__init__()  # for the end of the fixture


def test_a_table_is_downloaded_once_and_read_from_the_cache(small, server, monkeypatch, capsys):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("3D_spatial_network.txt", RAW["road"])
    packed = content.getvalue()
    server.answers["/roads.zip"] = [(200, packed, len(packed))]
    addresses = (server.address("/absent.txt"), server.address("/roads.zip"))
    monkeypatch.setitem(PAPER_TABLES, "road", PAPER_TABLES["road"]._replace(addresses=addresses))
    assert len(fetch("road").y) == len(fetch("road").y) == 2
    assert server.asked == ["/absent.txt", "/roads.zip"]
    assert "/absent.txt: 404 Not Found" in capsys.readouterr().err
    (small / "cache" / "downloads" / "road.zip").write_bytes(packed + b"more")
    with pytest.raises(DigestError, match="first download"):
        fetch("road")


def test_a_table_that_cannot_be_downloaded_says_which_file_to_put_where(small, server, monkeypatch):
    addresses = (server.address("/absent.zip"),)
    monkeypatch.setitem(PAPER_TABLES, "bike", PAPER_TABLES["bike"]._replace(addresses=addresses))
    with pytest.raises(FileNotFoundError, match=r"Put hour.csv, or the ZIP file with it, .*/absent.zip: 404"):
        fetch("bike", progress=False)


def test_addresses_are_those_of_the_archive_over_https():
    for table in PAPER_TABLES.values():
        assert table.addresses
        assert all(address.startswith("https://archive.ics.uci.edu/") for address in table.addresses)
        assert any(f"/{table.uci_id}/" in address for address in table.addresses)


# ---- generated data ----


def matern32(r):
    """The Matérn kernel of smoothness 3/2 from its Bessel function."""
    z = np.sqrt(3) * np.where(r == 0, 1e-12, r)
    return 2 ** (1 - 1.5) / gamma(1.5) * z**1.5 * kv(1.5, z)


@pytest.mark.slow
def test_targets_have_the_covariance_of_the_process():
    X = torch.tensor([[0.0], [0.1], [0.5]], dtype=torch.float64)
    prior = matern32_prior(1, 0.3, 1.7, 0.2)
    draws = np.stack([draw_targets(prior, X, seed).numpy() for seed in range(4000)])
    r = np.abs(X.numpy() - X.numpy().T) / 0.3
    expected = 1.7 * matern32(r) + 0.2 * np.eye(3)
    assert np.cov(draws.T) == pytest.approx(expected, abs=5 * 1.9 * np.sqrt(2 / 4000))
    assert np.abs(draws.mean(0)).max() < 5 * np.sqrt(1.9 / 4000)


def test_rows_fill_the_cube_or_avoid_the_gap():
    data = uniform_data(25, seed=3)
    assert data.X.shape == (500, 25)
    assert 0 <= float(data.X.min()) < 0.01 < 0.99 < float(data.X.max()) <= 1
    assert torch.equal(data.y, uniform_data(25, seed=3).y)
    assert not torch.equal(data.y, uniform_data(25, seed=4).y)
    gap = gap_data(60, 3)
    inside = (gap.X > 0.25) & (gap.X < 0.75)
    assert int(inside.sum()) == 3
    with pytest.raises(ValueError, match="num_inside is 60"):
        gap_data(60, 60)
