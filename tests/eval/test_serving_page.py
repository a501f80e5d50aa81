"""The server's page in headless Chromium, on a phone and on a wide screen."""

import shutil
import time

import pytest

from eval.chat import Turn, render_prompt, user_turn
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from tests.eval.running_server import is_idle, served, until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
PROMPT, COUNT = "Tell me more: " + "a" * 200, 60
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
FITS = "[...document.querySelectorAll('body *')].every(e => e.getBoundingClientRect().right <= innerWidth)"
IS_DONE = "!document.querySelector('button').disabled"


@pytest.fixture(scope="module")
def server(pair):
    with served(pair) as running, playwright.sync_playwright() as driver:
        running.browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.browser.close()


@pytest.fixture(params=[PHONE, WIDE], ids=["phone", "wide"])
def page(server, request):
    with server.browser.new_page(viewport=request.param) as page:
        page.goto(server.url)
        page.fill("textarea", PROMPT)
        page.fill("[name=max_tokens]", str(COUNT))
        yield page


def test_both_responses_are_shown_with_the_source_of_each_token(page, pair):
    ids = render_prompt(pair.tokenizer, Turn((user_turn(PROMPT),)))
    [text] = plain_decode(pair.target, [ids], limits=Limits(COUNT, pair.stop_ids))
    page.check("[name=plain]")
    page.click("text=Generate")
    page.wait_for_function(IS_DONE)
    assert page.locator("output").all_text_contents() == 2 * [pair.tokenizer.decode(text.token_ids)]
    drafted, tokens = page.locator("output .draft"), len(text.token_ids)
    assert 0 < drafted.count() < tokens
    assert drafted.first.evaluate("e => getComputedStyle(e).textDecorationLine") == "underline"
    with_draft, plain = page.locator("small").all_text_contents()
    assert f"length {tokens / (tokens - drafted.count()):.2f}" in with_draft
    assert all(f"tokens/s, {tokens} tokens" in shown for shown in (with_draft, plain))
    first, second = (each.bounding_box() for each in page.query_selector_all("section"))
    is_phone = page.viewport_size == PHONE
    assert (first["y"] < second["y"], first["x"] < second["x"]) == (is_phone, not is_phone)
    assert page.evaluate(FITS)


def test_a_response_is_stopped_by_the_keyboard_and_errors_are_shown(page, server, monkeypatch):
    notice, step = page.locator("[role=alert]"), server.engine.step
    monkeypatch.setattr(server.engine, "step", lambda *words: (time.sleep(0.1), step(*words)))
    page.focus("text=Generate")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('output span').length > 3")
    page.keyboard.press("Enter")
    page.wait_for_function(IS_DONE)
    assert page.locator("output span").count() < COUNT
    assert page.evaluate("document.activeElement.textContent") == "Generate"
    until(lambda: is_idle(server))
    monkeypatch.setattr(server.engine, "step", lambda *_: 1 / 0)
    page.keyboard.press("Enter")
    playwright.expect(notice).to_contain_text("Error")
    page.fill("[name=max_tokens]", "9999")  # rejected before the response begins
    page.keyboard.press("Enter")
    playwright.expect(notice).to_contain_text("9999")
    page.fill("textarea", "")
    page.click("text=Generate")
    assert page.evaluate("document.activeElement.name") == "prompt"
    assert page.evaluate(FITS)
