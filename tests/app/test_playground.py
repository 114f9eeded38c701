"""The playground in a real browser, against a real server: choose a clip, ask, read the answer and what it cost.

Debian's chromium and its driver, by their paths, so that nothing is downloaded; the browser talks to loopback only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from runner.errors import RequestError
from runner.messages import EvsUsage, PromptUsage, VideoUsage
from tests.app.conftest import RunningServer, StartServer
from tests.app.fake_engine import FakeEngine

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
ANSWER = "A red square moves to the right."
WAIT_S = 20
KEPT = (64, 6, 4, 3, 32, 6, 5, 4)
USAGE = PromptUsage(
    prompt_tokens=900,
    video_tokens=124,
    evs=EvsUsage(
        method="gate", frames=16, slots=8, cells=512, kept=124, kept_per_slot=(KEPT,), encoder_cells=124, encoder="skip"
    ),
    video=(VideoUsage(duration_s=16.0, timestamps_s=tuple(map(float, range(16))), size=(256, 448), fps=1.0),),
)

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=ChromeService(executable_path=DRIVER))
    browser.set_window_size(1000, 1300)
    yield browser
    browser.quit()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    shutil.copy(Path(__file__).parents[2] / "sample_videos" / "mover.mp4", path)
    return path


def wait(browser: Chrome, condition: Callable[[Chrome], object]) -> None:
    WebDriverWait(browser, WAIT_S, poll_frequency=0.05).until(condition)


def find(browser: Chrome, name: str) -> WebElement:
    return browser.find_element(By.ID, name)


def ask(browser: Chrome, server: RunningServer, clip: Path) -> None:
    browser.get(server.url)
    find(browser, "file").send_keys(str(clip))
    find(browser, "ask").click()


def shoot(browser: Chrome, name: str) -> None:
    """A picture to look at, when EVS_TEST_PICTURES names a folder."""
    if folder := os.environ.get("EVS_TEST_PICTURES"):
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def complaints(browser: Chrome) -> list[str]:
    """What the console says: broken scripts and forbidden loads; a refused request is no fault of the page."""
    return [
        entry["message"] for entry in browser.get_log("browser") if "the server responded with" not in entry["message"]
    ]


def test_ask(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    """The answer is seen to grow; then tokens, times, frames and cells are shown, and the clip can be asked again."""
    engine = FakeEngine(ANSWER, usage=USAGE)
    gate = {"open": False}
    engine.step_gate = lambda place: place < 5 or gate["open"]
    server = start_server(engine)
    ask(browser, server, clip)
    wait(browser, lambda _: find(browser, "answer").text == ANSWER[:5])
    assert find(browser, "stop").is_displayed() and not find(browser, "ask").is_enabled()
    gate["open"] = True
    wait(browser, lambda _: find(browser, "ask").is_enabled())
    assert find(browser, "answer").text == ANSWER
    usage = find(browser, "usage").text
    for words in (
        "900 prompt (3 cached) +",
        f"{len(ANSWER) + 1} answer",
        "16 frames of 16.0 s",
        "gate: 124 of 512 cells kept (24 %), 124 encoded (skip)",
    ):
        assert words in usage
    bars = browser.find_elements(By.CSS_SELECTOR, ".bars button")
    titles = [bar.get_attribute("title") for bar in bars]
    assert titles == [f"{2 * slot:.2f} s: {kept} of 64 cells" for slot, kept in enumerate(KEPT)]
    heights = [bar.find_element(By.TAG_NAME, "i").size["height"] / bar.size["height"] for bar in bars]
    assert heights == pytest.approx([kept / 64 for kept in KEPT], abs=0.05)
    assert find(browser, "model").text == "fake"
    assert not find(browser, "error").is_displayed()
    assert engine.files == [clip.read_bytes()]
    shoot(browser, "answer")
    find(browser, "ask").click()
    wait(browser, lambda _: len(engine.requests) == 2 and find(browser, "ask").is_enabled())
    assert find(browser, "answer").text == ANSWER
    assert complaints(browser) == []


def test_settings_reach_the_engine(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    engine = FakeEngine(ANSWER)
    server = start_server(engine)
    browser.get(server.url)
    browser.find_element(By.TAG_NAME, "summary").click()
    find(browser, "file").send_keys(str(clip))
    for name, value in (("fps", "2"), ("max_frames", "4"), ("rate", "0.5"), ("method", "gate"), ("encoder", "skip"),
                        ("temperature", "0")):  # fmt: skip
        find(browser, name).send_keys(value)
    shoot(browser, "settings")
    find(browser, "ask").click()
    wait(browser, lambda _: find(browser, "ask").is_enabled() and engine.requests)
    (request,) = engine.requests
    video = request.chat[0].parts[0].video  # type: ignore[union-attr]
    assert (video.fps, video.max_frames, request.evs.method, request.evs.rate) == (2, 4, "gate", 0.5)
    assert request.evs.encoder == "skip"


def test_errors_are_readable(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    """The server's own words, beside what was there; a missing clip is said before anything is sent."""
    message = "the file holds no video stream; send a video"
    server = start_server(FakeEngine(refuses=RequestError("undecodable", message)))
    browser.get(server.url)
    find(browser, "ask").click()
    assert "Choose a video first" in find(browser, "error").text
    ask(browser, server, clip)
    wait(browser, lambda _: find(browser, "error").is_displayed())
    assert find(browser, "error").text == "That did not work. " + message.capitalize()
    assert find(browser, "ask").is_enabled() and not find(browser, "answer").is_displayed()
    shoot(browser, "error")


def test_a_key_is_asked_for_and_sent(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    server = start_server(FakeEngine(ANSWER), api_key=["secret"])
    ask(browser, server, clip)
    wait(browser, lambda _: "API key" in find(browser, "error").text)
    browser.find_element(By.TAG_NAME, "summary").click()
    find(browser, "key").send_keys("secret")
    find(browser, "ask").click()
    wait(browser, lambda _: find(browser, "answer").text == ANSWER)
    assert not find(browser, "error").is_displayed()


def test_stop(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    """Ends the request on the server; what was read stays."""
    engine = FakeEngine(ANSWER)
    engine.step_gate = lambda place: place < 5
    server = start_server(engine)
    ask(browser, server, clip)
    wait(browser, lambda _: find(browser, "answer").text == ANSWER[:5])
    find(browser, "stop").click()
    wait(browser, lambda _: server.is_clean() and find(browser, "ask").is_enabled())
    assert find(browser, "answer").text == ANSWER[:5]


def test_dropped_clips(browser: Chrome, start_server: StartServer) -> None:
    """Anywhere on the page."""
    engine = FakeEngine(ANSWER)
    server = start_server(engine)
    browser.get(server.url)
    browser.execute_script(
        "const files = new DataTransfer(); files.items.add(new File(['clip'], 'dropped.mp4'));"
        "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));"
    )
    assert find(browser, "name").text == "dropped.mp4"
    find(browser, "ask").click()
    wait(browser, lambda _: find(browser, "answer").text == ANSWER)
    assert engine.files == [b"clip"]


def test_on_a_phone(browser: Chrome, start_server: StartServer, clip: Path) -> None:
    """Nothing sticks out to the side, settings open and an answer shown."""
    server = start_server(FakeEngine(ANSWER, usage=USAGE))
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        ask(browser, server, clip)
        wait(browser, lambda _: find(browser, "answer").text == ANSWER)
        browser.find_element(By.TAG_NAME, "summary").click()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        shoot(browser, "phone")
        browser.get(server.url + "/docs")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_reference_page(browser: Chrome, start_server: StartServer) -> None:
    """Needs no other server and no script."""
    server = start_server()
    browser.get(server.url + "/docs")
    assert "POST /v1/chat/completions" in browser.find_element(By.TAG_NAME, "body").text
    browser.find_elements(By.TAG_NAME, "summary")[0].click()
    shoot(browser, "docs")
    assert complaints(browser) == []
