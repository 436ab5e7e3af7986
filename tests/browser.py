"""A headless Chromium for tests that look at pages. Where there is none they skip; nothing is ever downloaded."""

import json
import shutil
from contextlib import contextmanager

import pytest

OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --lang=en"
).split()


@contextmanager
def chromium(profile):
    "A running browser with a fresh profile in this folder; skips the test where something is missing."
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield running
    finally:
        running.quit()


def screen(browser, width=1280, height=900, theme="light", medium="screen"):
    "How large the screen is, and whether the page is to be dark or printed."
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})


def script(browser, allowed=True):
    "Switches JavaScript on or off for the pages that are opened next."
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})


def requests(browser):
    "The addresses that were asked for since the last call, whether or not they answered."
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]


def complaints(browser):
    "What the browser wrote to its console since the last call: errors, warnings, refusals of the security policy."
    return [entry["message"] for entry in browser.get_log("browser")]
