"""The page in headless Chromium: nothing sticks out at the width of a phone, and it prints."""

import html
import json
import re
import shutil
import subprocess

import pytest

from eval.report.page import write_report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; reports are made without one")
MEASURE = """
<iframe srcdoc="{page}" style="border:0;width:{width}px;height:4000px"></iframe><pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const boxes = (names) => [...page.querySelectorAll(names)].map((one) => one.getBoundingClientRect());
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.clientWidth,
    content: page.documentElement.scrollWidth,
    figures: boxes("figure svg").map((box) => [box.left, box.right, box.height]),
    letters: Math.min(...[...page.querySelectorAll("figure svg text")].map((one) =>
      parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getBoundingClientRect().width
        / one.ownerSVGElement.viewBox.baseVal.width)),
    verdict: boxes(".verdict")[0].top,
  }});
}};
</script>
"""


def chromium(*words, cwd):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={cwd / 'profile'}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=cwd).stdout


@pytest.fixture(scope="module")
def report(scored, tmp_path_factory):
    out = tmp_path_factory.mktemp("browser") / "report.html"
    write_report([scored / "deep", scored / "shallow"], out)
    return out


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_sticks_out_of_a_phone_or_a_desk(report, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(
        MEASURE.format(page=html.escape(report.read_text(encoding="utf-8")), width=width), encoding="utf-8"
    )
    dom = chromium("--dump-dom", "--window-size=1300,900", frame.as_uri(), cwd=tmp_path)
    found = json.loads(html.unescape(re.findall(r"<pre>(.*?)</pre>", dom)[-1]))
    assert found["content"] <= found["width"] <= width
    assert found["verdict"] < 200
    assert len(found["figures"]) == 9
    for left, right, height in found["figures"]:
        assert 0 <= left < right <= width
        assert height > 100
    assert found["letters"] >= 9, "letters in plots are at least 9 pixels high"


def test_it_prints(report, tmp_path):
    pdf = tmp_path / "report.pdf"
    chromium(f"--print-to-pdf={pdf}", report.as_uri(), cwd=tmp_path)
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 16
