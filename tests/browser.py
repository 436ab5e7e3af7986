"""A headless Chromium for tests that look at pages.

Where there is none they skip; nothing is ever downloaded.
"""

import json
import shutil
from contextlib import contextmanager

import pytest

OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-dev-shm-usage --lang=en"
).split()


# every colour of text on the page with the ground behind it and one element that has them
READABLE = """
const parse = text => { // rgb(…), rgba(…) or color(srgb …)
  const [red, green, blue, alpha = 1] = text.match(/[\\d.]+/g).map(Number);
  const scale = text.startsWith('color') ? 255 : 1;
  return [[red, green, blue].map(part => part * scale), alpha];
};
const ground = element => {
  for (let e = element; e; e = e.parentElement) {
    const [colour, alpha] = parse(getComputedStyle(e).backgroundColor);
    if (alpha === 1) return colour;
    if (alpha) throw Error('half transparent');
  }
  return [255, 255, 255];
};
const found = {}, walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, style = getComputedStyle(element);
  if (!walker.currentNode.data.trim() || !element.getClientRects().length) continue;
  if (element.closest('.skip')) continue;
  const colours = [parse(element.closest('svg') ? style.fill : style.color)[0], ground(element)];
  found[JSON.stringify(colours)] = element.outerHTML.slice(0, 90);
}
return Object.entries(found).map(([colours, where]) => [...JSON.parse(colours), where]);
"""


@contextmanager
def chromium(profile):
    """A running browser with a fresh profile in this folder; skips the test where something is
    missing.
    """
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("needs Chromium and its driver (Debian: chromium, chromium-driver)")
    try:
        from selenium import webdriver
    except ImportError:
        pytest.skip("needs Chromium and the package selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in [*OPTIONS, f"--user-data-dir={profile}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    try:
        # the browser loads the parts of its own first page whenever it comes to it, also into the
        # middle of a test; a second tab has none
        first = running.current_window_handle
        running.switch_to.new_window("tab")
        second = running.current_window_handle
        running.switch_to.window(first)
        running.close()
        running.switch_to.window(second)
        requests(running), complaints(running)
        yield running
    finally:
        running.quit()


def screen(browser, width=1280, height=900, theme="light", medium="screen"):
    """How large the screen is, and whether the page is to be dark or printed."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})


def script(browser, allowed=True):
    """Switches JavaScript on or off for the pages that are opened next."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})


def requests(browser):
    """The addresses that were asked for since the last call, whether or not they answered."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def complaints(browser):
    """What the browser wrote to its console since the last call: errors, warnings, refusals of
    the security policy.
    """
    return [entry["message"] for entry in browser.get_log("browser")]


def luminance(colour):
    """Relative luminance, WCAG 2."""
    parts = [part / 255 for part in colour]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    """Between two colours (red, green, blue), WCAG 2: 1 to 21."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
