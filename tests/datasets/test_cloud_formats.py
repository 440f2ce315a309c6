"""The same points in every format, and what is said of broken files."""

import struct

import numpy as np
import pytest

from pcdet.datasets.cloud_formats import SUFFIXES, CloudLayout, read_points, stem_of, suffix_of
from pcdet.datasets.clouds import cloud_files

POINTS = np.array([[1.5, -2.25, 0.5, 0.25], [10.0, 3.0, -1.0, 1.0], [-4.0, 0.125, 2.0, 0.0]], dtype=np.float32)
XYZI = ("x", "y", "z", "intensity")
NAMED = {name: POINTS[:, i] for i, name in enumerate(XYZI)}
PCD = """# .PCD v0.7
VERSION 0.7
FIELDS intensity x _ y z
SIZE 4 4 1 4 4
TYPE F F U F F
COUNT 1 1 2 1 1
WIDTH 3
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS 3
DATA ascii
"""
PLY = """ply
format {} 1.0
element vertex 3
property float x
property float y
property double z
property uchar red
property float scalar_Intensity
element face 1
property list uchar int vertex_indices
end_header
"""


def write_npy_records(path):
    records = np.zeros(3, [(name, "f8") for name in reversed(XYZI)])
    for name, values in NAMED.items():
        records[name] = values
    np.save(path, records)


def write_pcd_ascii(path):
    rows = "".join(f"{i:g} {x:g} 0 0 {y:g} {z:g}\n" for x, y, z, i in POINTS)
    path.write_text(PCD + rows)


def write_pcd(path, encoding):
    pypcd4 = pytest.importorskip("pypcd4")
    cloud = pypcd4.PointCloud.from_points(POINTS.astype(np.float64), XYZI, (np.float32,) * 4)
    cloud.save(path, encoding=pypcd4.Encoding(encoding))


def write_ply_ascii(path):
    rows = "".join(f"{x:g} {y:g} {z:g} 7 {i:g}\n" for x, y, z, i in POINTS)
    path.write_text(PLY.format("ascii") + rows + "3 0 1 2\n")


def write_ply_binary(path):
    rows = b"".join(struct.pack(">ffdBf", x, y, z, 7, i) for x, y, z, i in POINTS)
    path.write_bytes(PLY.format("binary_big_endian").encode() + rows + struct.pack(">Biii", 3, 0, 1, 2))


def write_las(path):
    laspy = pytest.importorskip("laspy")
    if path.suffix == ".laz":
        pytest.importorskip("lazrs")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales = [0.125] * 3
    header.offsets = [100.0, 0.0, 0.0]
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = (POINTS[:, i].astype(np.float64) for i in range(3))
    cloud.intensity = (POINTS[:, 3] * 4).astype(np.uint16)
    cloud.write(str(path))


def lines(separator, rows=POINTS):
    return "".join(separator.join(f"{v:g}" for v in row) + "\n" for row in rows)


WRITERS = {
    "a.bin": lambda p: POINTS.tofile(p),
    "a.pcd.bin": lambda p: np.column_stack([POINTS, [1, 2, 3]]).astype(np.float32).tofile(p),
    "a.npy": lambda p: np.save(p, POINTS.astype(np.float64)),
    "records.npy": write_npy_records,
    "points.npz": lambda p: np.savez(p, points=POINTS, other=np.zeros(2)),
    "one.npz": lambda p: np.savez(p, cloud=POINTS),
    "columns.npz": lambda p: np.savez(p, **{k.upper(): v for k, v in NAMED.items()}, pose=np.eye(4)),
    "ascii.pcd": write_pcd_ascii,
    "binary.pcd": lambda p: write_pcd(p, "binary"),
    "compressed.pcd": lambda p: write_pcd(p, "binary_compressed"),
    "ascii.ply": write_ply_ascii,
    "binary.ply": write_ply_binary,
    "a.las": write_las,
    "a.laz": write_las,
    "a.xyz": lambda p: p.write_text("# x y z i\n\n" + lines("  ")),
    "a.txt": lambda p: p.write_text("// made by hand\n" + lines(" ", np.column_stack([POINTS, [9, 9, 9]]))),
    "a.csv": lambda p: p.write_text("Z;reflectivity;X;Y\n" + lines(";", POINTS[:, [2, 3, 0, 1]])),
    "bare.csv": lambda p: p.write_text(lines(", ")),
}
NEEDS = {".pcd": "pypcd4", ".ply": "plyfile", ".las": "laspy", ".laz": "lazrs"}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_points_come_out_of_every_format(tmp_path, name):
    if suffix_of(name) in NEEDS:
        pytest.importorskip(NEEDS[suffix_of(name)])
    WRITERS[name](tmp_path / name)
    points, dropped = read_points(tmp_path / name, XYZI)
    scale = [1, 1, 1, 4] if suffix_of(name) in (".las", ".laz") else 1  # LAS keeps whole numbers for intensity
    assert dropped == 0 and points.dtype == np.float32 and points.flags.c_contiguous
    np.testing.assert_allclose(points, POINTS * scale, atol=1e-6)


def test_every_suffix_is_tried_above():
    assert {suffix_of(name) for name in WRITERS} == set(SUFFIXES)


@pytest.mark.parametrize(
    "name, suffix, stem",
    [("a.bin", ".bin", "a"), ("b.PCD.BIN", ".pcd.bin", "b"), ("c.1.laz", ".laz", "c.1"), ("d.json", None, "d.json")],
)
def test_suffixes(name, suffix, stem):
    assert (suffix_of(name), stem_of(name)) == (suffix, stem)


def test_named_fields_are_found_renamed_and_filled(tmp_path):
    np.savez(tmp_path / "a.npz", x=[1.0], y=[2.0], z=[3.0], power=[0.5])
    features = (*XYZI, "ring")
    with pytest.raises(ValueError, match="a.npz has no field 'intensity'; it has x, y, z, power.*field_names"):
        read_points(tmp_path / "a.npz", XYZI)
    layout = CloudLayout(features, {"intensity": "Power"}, {"ring": 7.0})
    assert read_points(tmp_path / "a.npz", layout)[0].tolist() == [[1, 2, 3, 0.5, 7]]
    with pytest.raises(ValueError, match="missing_values names .'elongation'"):
        CloudLayout(features, {}, {"elongation": 0.0})


@pytest.mark.parametrize("head", ["X,Y,Z,Intensity\r\n", ""])
def test_a_byte_order_mark_is_part_of_neither_a_name_nor_a_number(tmp_path, head):
    (tmp_path / "a.csv").write_bytes(f"\ufeff{head}1,2,3,0.5\r\n".encode())
    assert read_points(tmp_path / "a.csv", XYZI)[0].tolist() == [[1, 2, 3, 0.5]]


def test_features_that_bare_numbers_lack_are_not_counted_as_columns(tmp_path):
    POINTS[:, :3].tofile(tmp_path / "a.bin")
    points, _ = read_points(tmp_path / "a.bin", CloudLayout(XYZI, {}, {"intensity": 0.5}))
    assert points.tolist() == [[*row[:3], 0.5] for row in POINTS.tolist()]


@pytest.mark.parametrize("name", ["a.npy", "a.xyz", "a.bin"])
def test_b15_points_that_are_not_finite_are_dropped_and_counted(tmp_path, name):
    bad = np.concatenate([POINTS, [[np.nan, 0, 0, 0]], [[0, 0, np.inf, 0]], [[0, 0, 0, np.nan]]]).astype(np.float32)
    writers = {"a.npy": np.save, "a.xyz": np.savetxt, "a.bin": lambda p, rows: rows.tofile(p)}
    writers[name](tmp_path / name, bad)
    points, dropped = read_points(tmp_path / name, XYZI)
    assert dropped == 3 and len(points) == 3


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.bin", b"\0" * 84, r"a.bin has 84 bytes, which is 4 more"),
        ("a.pcd.bin", b"\0" * 16, r"a.pcd.bin has 16 bytes.*20 \(5 float32"),
        ("a.npy", b"no array", "a.npy is not a NumPy file"),
        ("a.npz", b"", "a.npz is not a NumPy file"),
        ("a.xyz", b"1 2 3 4\n1 2 x 4\n", "a.xyz, counted from line 1 as row 0.*'x'.*row 1"),
        ("a.xyz", b"1 2 3\n", r"a.xyz holds an array of shape \(1, 3\)"),
        ("a.txt", b"1 2 3 4\n1 2 3\n", "a.txt.*number of columns"),
        ("a.csv", b"x,y,z,x\n1,2,3,4\n", "a.csv:1: a column's name stands twice"),
        ("a.csv", b"x,y,z,ring\n1,2,3,4\n", "a.csv has no field 'intensity'; it has x, y, z, ring"),
        ("a.txt", b"\xff\xfe\x00", "a.txt:1 is not text"),
        ("a.json", b"{}", "no point cloud is read from such a file; known are .bin"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_points(tmp_path / name, XYZI)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.pcd", b"", "a.pcd is empty"),
        ("a.pcd", b"# .PCD v.7\nVERSION .7\nFIEL\n", "a.pcd cannot be read as PCD.*fields: field required"),
        ("a.pcd", PCD.replace("ascii", "binary").encode() + b"\0" * 9, "a.pcd cannot be read as PCD"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement", "a.ply cannot be read as PLY"),
        ("a.ply", PLY.format("ascii").encode() + b"1 2 3 4 5\n", "a.ply cannot be read as PLY"),
        ("a.las", b"LASF", "a.las cannot be read as LAS"),
        ("a.las", b"", "a.las cannot be read as LAS"),
        ("a.laz", b"no header at all", "a.laz cannot be read as LAS"),
    ],
)
def test_broken_files_of_optional_readers_are_named(tmp_path, name, content, message):
    pytest.importorskip(NEEDS[suffix_of(name)])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_points(tmp_path / name, XYZI)


@pytest.mark.parametrize("name, package", [("a.pcd", "pypcd4"), ("a.ply", "plyfile"), ("a.las", "laspy")])
def test_absent_packages_are_named_with_how_to_install_them(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    (tmp_path / name).write_bytes(b"content")
    with pytest.raises(
        ValueError, match=rf"{name}: .*{package}, which is not installed: pip install .pcdet\[formats\]"
    ):
        read_points(tmp_path / name, XYZI)


def test_empty_clouds_are_legal(tmp_path):
    (tmp_path / "a.xyz").write_text("# nothing\n")
    (tmp_path / "a.csv").write_text("x,y,z,intensity\n")
    (tmp_path / "a.bin").write_bytes(b"")
    for name in ("a.xyz", "a.csv", "a.bin"):
        assert read_points(tmp_path / name, XYZI)[0].shape == (0, 4)


def test_text_files_beside_clouds_are_not_taken_for_clouds(tmp_path):
    for name in ("a.pcd", "b.txt", "c.csv"):
        (tmp_path / name).write_text("1 2 3 4\n")
    assert [p.name for p in cloud_files(tmp_path)] == ["a.pcd"]
    assert [p.name for p in cloud_files(tmp_path, ".txt")] == ["b.txt"]
    (tmp_path / "a.pcd").unlink()
    assert [p.name for p in cloud_files(tmp_path)] == ["b.txt", "c.csv"]


def test_real_files_of_other_tools(shared):
    """Organized, compressed and multi-count clouds, a point format with colours, compressed LAS."""
    other = shared / "data" / "other"
    for name in NEEDS.values():
        pytest.importorskip(name)
    filled = CloudLayout(XYZI, {}, {"intensity": 0.0})
    rgb = [read_points(other / "pcd" / f"{kind}.pcd", filled)[0] for kind in ("ascii", "binary", "binary_compressed")]
    assert rgb[0].shape == (213, 4)
    np.testing.assert_allclose(rgb[0], rgb[1], atol=1e-5)
    np.testing.assert_allclose(rgb[0], rgb[2], atol=1e-5)
    for kind in ("ascii_multi_count", "ascii_organized", "binary_compressed_organized"):
        points, _ = read_points(other / "pcd" / f"{kind}.pcd", XYZI)
        np.testing.assert_allclose(points[:, 3], np.arange(1, 9) / 10, atol=1e-6)
    assert read_points(other / "pcd" / "ascii_with_empty_points.pcd", filled)[0].shape == (0, 4)
    las, laz = (read_points(other / "las" / f"simple.{kind}", XYZI)[0] for kind in ("las", "laz"))
    assert np.array_equal(las, laz) and len(las) == 1065
    diamonds = [read_points(p, filled)[0] for p in sorted((other / "mesh").glob("diamond*"))]
    assert len(diamonds) == 6
    for diamond in diamonds:
        np.testing.assert_allclose(np.sort(diamond[:, :3], axis=0), np.sort(diamonds[0][:, :3], axis=0), atol=1e-6)
    sweep = next((other / "nuscenes").glob("*.pcd.bin"))
    points, _ = read_points(sweep, (*XYZI, "ring"))
    assert len(points) * 20 == sweep.stat().st_size and set(np.unique(points[:, 4])) == set(range(32))
